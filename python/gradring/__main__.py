"""The `gradring` command, also as `python -m gradring`: where it begins.

To load it takes a while, in which Ctrl-C would be a traceback out of whatever is being loaded: so
until `cli` takes the signal up, it ends the process at once. There is nothing to clear away yet.
"""

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from gradring.cli import main

if __name__ == "__main__":
    sys.exit(main())
