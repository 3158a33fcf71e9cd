"""`python -m raymine.cli`, for systems where the script `raymine` is not on PATH."""

import sys

from .app import main

if __name__ == "__main__":
    sys.exit(main())
