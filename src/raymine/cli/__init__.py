"""The command line. Importing it does not import torch or numba; each command imports what it needs when it runs."""

from .app import main as main
from .app import run as run
