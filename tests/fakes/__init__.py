"""Stand-ins for the world outside the daemon: a workflow server, HTTP in front of it, and a network that breaks.

Nothing here shares code with the daemon or with its client: a fake that repeats a mistake proves it right.
"""
