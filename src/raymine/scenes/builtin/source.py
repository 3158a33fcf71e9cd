"""The version of the built-in scene. A separate module, so that finding a cached scene does not import Numba."""

from __future__ import annotations

import hashlib
import importlib.resources

_SOURCES = ("shapes.py", "paint.py", "tracer.py", "views.py")


def generator_digest() -> str:
    """sha256 in hex of the source files that determine how the scene looks.

    In the digest, module names are replaced by their former names `raymine.scenes._builtin_*`, so that scenes that were
    cached under those names are still found.
    """
    folder = importlib.resources.files("raymine.scenes.builtin")
    sources = (folder.joinpath(name).read_bytes() for name in _SOURCES)
    return hashlib.sha256(b"".join(source.replace(b"builtin.", b"_builtin_") for source in sources)).hexdigest()
