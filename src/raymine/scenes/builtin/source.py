"""Which version of the built-in scene this is. Apart, so that finding a cached scene does not import Numba."""

from __future__ import annotations

import hashlib
import importlib.resources

_SOURCES = ("shapes.py", "paint.py", "tracer.py", "views.py")


def generator_digest() -> str:
    """sha256, in hex, over the source of everything that decides how the scene looks.

    The modules name each other as they did when they were `raymine.scenes._builtin_*`, so that a scene which was cached
    then is still found.
    """
    folder = importlib.resources.files("raymine.scenes.builtin")
    sources = (folder.joinpath(name).read_bytes() for name in _SOURCES)
    return hashlib.sha256(b"".join(source.replace(b"builtin.", b"_builtin_") for source in sources)).hexdigest()
