"""The command line. Importing it imports neither torch nor numba; each command imports what it needs when it runs."""

from .app import main as main
