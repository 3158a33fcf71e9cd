"""`python -m raymine.cli`, where the `raymine` script is not on the path."""

import sys

from .app import main

if __name__ == "__main__":
    sys.exit(main())
