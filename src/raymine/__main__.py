"""`python -m raymine` is the command `raymine`, for launchers that start modules (torchrun) and folders on the path."""

from raymine.cli import run

if __name__ == "__main__":
    run()
