"""The version whose names and results these are."""

__version__ = "0.5.3"
