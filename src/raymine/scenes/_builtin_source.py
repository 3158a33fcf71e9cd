"""Which version of the built-in scene this is. Apart, so that finding a cached scene does not import Numba."""

from __future__ import annotations

import hashlib
import importlib.resources

_SOURCES = ("_builtin_shapes.py", "_builtin_paint.py", "_builtin_tracer.py", "_builtin_views.py")


def generator_digest() -> str:
    """sha256, in hex, over the source of everything that decides how the scene looks."""
    folder = importlib.resources.files("raymine.scenes")
    return hashlib.sha256(b"".join(folder.joinpath(name).read_bytes() for name in _SOURCES)).hexdigest()
