"""`python -m raymine` is the command `raymine`, for launchers that start modules (torchrun) and folders on the path."""

from raymine.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
