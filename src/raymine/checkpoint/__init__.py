"""Checkpoints: saved training states. They are written atomically, verified when read, and rotated."""

from .store import FORMAT as FORMAT
from .store import Best as Best
from .store import Checkpoint as Checkpoint
from .store import Latest as Latest
from .store import list_steps as list_steps
from .store import load as load
from .store import load_best as load_best
from .store import load_latest as load_latest
from .store import mark_best as mark_best
from .store import path_of as path_of
from .store import read_best as read_best
from .store import require as require
from .store import rewind as rewind
from .store import save as save
