"""Read a pickle that holds dicts of float32 numpy arrays, and nothing else.

A pickle can call any function that it names. This reader knows the three names that numpy arrays need, and refuses
every other one before anything is called.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np


class RefusedPickle(Exception):
    """A pickle that holds more than dicts of float32 arrays, or that is damaged."""


def _reconstruct(kind: type, shape: tuple[int, ...], typecode: bytes) -> np.ndarray:
    """An empty array, which the pickle then fills. Numpy's own function takes any class."""
    if kind is not np.ndarray or tuple(shape) != (0,):
        raise RefusedPickle("an array of an unknown class")
    return np.ndarray.__new__(np.ndarray, (0,), np.int8)


def _dtype(code: str, align: bool = False, copy: bool = True) -> np.dtype[Any]:
    if code != "f4":
        raise RefusedPickle(f"numbers of type {code!r}; expected float32")
    # A copy: the pickle sets the byte order of it.
    return np.dtype("f4", copy=True)


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise RefusedPickle(f"it names {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedPickle("it refers to objects outside of the file")


def read_arrays(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a pickle of nested dicts, by their path: "a/b/c". Raises `RefusedPickle` for anything else."""
    try:
        found = _Reader(io.BytesIO(data)).load()
    except RefusedPickle:
        raise
    except Exception as error:  # A damaged pickle raises almost anything.
        raise RefusedPickle(f"it cannot be read ({type(error).__name__}: {error})") from error
    arrays: dict[str, np.ndarray] = {}
    _collect(found, "", arrays)
    return arrays


def _collect(value: object, path: str, arrays: dict[str, np.ndarray]) -> None:
    if type(value) is dict:
        for key, item in value.items():
            if not isinstance(key, str):
                raise RefusedPickle(f"a key of type {type(key).__name__}")
            _collect(item, f"{path}/{key}" if path else key, arrays)
    elif type(value) is np.ndarray and value.dtype == np.float32:
        arrays[path] = value
    else:
        raise RefusedPickle(f"{path or 'the file'} is of type {type(value).__name__}; expected an array of float32")
