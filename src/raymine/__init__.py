"""raymine: posed photos to a neural radiance field, on any machine that pip can reach."""

from ._version import __version__ as __version__
