"""The real process over real HTTP: signals, kills, second daemons."""
