"""`python -m scheduler_daemon` is `scheduler-daemon`.

Owns: nothing. Must never know: anything but where the command line begins.
"""

from scheduler_daemon.cli import main

if __name__ == "__main__":
    main()
