"""Arrays for what one run makes of a capture. Large ones lie in a file without a name in the cache folder.

The system may give up their pages without swapping, and the file ends with the process, however that ends.
"""

from __future__ import annotations

import math
import os
import tempfile

import numpy as np

from raymine.scenes._cache import cache_root, storage_error

IN_MEMORY = 256 << 20
"""Arrays of up to so many bytes stay in memory."""


def zeros(shape: tuple[int, ...], dtype: np.dtype | type, what: str) -> np.ndarray:
    """An array of zeros. what: a noun for the `ResourceError` of a disk without room for it."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size <= IN_MEMORY:
        return np.zeros(shape, kind)
    folder = cache_root()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # Room is taken now: writing to a page that finds none ends the process.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.memmap(file, kind, "r+", shape=shape)
    except OSError as error:
        raise storage_error(error, folder, f"{size >> 20} MB of {what}") from error
