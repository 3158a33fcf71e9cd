"""The command line. Importing it does not import torch or numba; each command imports what it needs when it runs."""

import sys

try:
    from .app import main as main
    from .app import run as run
except KeyboardInterrupt:
    # Loading the commands takes a third of a second, before `main` can handle Ctrl-C.
    print("error: stopped by Ctrl-C", file=sys.stderr)
    raise SystemExit(130) from None
