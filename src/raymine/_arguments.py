"""Arguments of the Python API: each as the type that raymine uses, or a `ConfigError` that names the argument."""

from __future__ import annotations

import contextlib
import math
import operator
import reprlib
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ImageColor
from torch import Tensor

from raymine.cameras import pose_fault
from raymine.errors import ConfigError, option
from raymine.files import expanded


def path_of(value: Any, name: str) -> Path:
    """A path, with `~` expanded."""
    if not isinstance(value, str | PathLike) or isinstance(value, bytes):
        raise ConfigError(f"{option(name)} must be a path (a str or a Path), got {value!r}.")
    return expanded(Path(value))


def whole(value: Any, name: str) -> int:
    """A whole number; 1e4 is one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, bool | np.bool_):
        with contextlib.suppress(TypeError):
            return operator.index(value)
    raise ConfigError(f"{option(name)} must be a whole number, got {value!r}.")


def texts(value: Any, name: str) -> tuple[str, ...]:
    """Names: one text, or a collection of them."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f"{option(name)} must be a text or a list of texts, got {value!r}.")
    return tuple(str(each) for each in value)


def number(value: Any, name: str) -> float:
    """A finite number."""
    if isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ConfigError(f"{option(name)} must be a finite number, got {value!r}.")


def numbers(values: Any, name: str) -> np.ndarray:
    """An array of float64."""
    try:
        found = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{option(name)} must be an array of numbers, with rows of one length, got {reprlib.repr(values)}."
        ) from error


def pose_matrix(value: Any, name: str) -> np.ndarray:
    """A rigid camera-to-world transform as [3, 4] float64."""
    if value is None:
        raise ConfigError(
            f"{option(name)} is missing: the camera alone does not say where it stands.",
            hint="Give a frame of run.scene.frames, or run.camera_at(position, target) for your own coordinates.",
        )
    matrix = numbers(value, name)
    if matrix.shape == (4, 4):
        if not np.allclose(matrix[3], (0.0, 0.0, 0.0, 1.0)):
            raise ConfigError(f"The last row of a [4, 4] {option(name)} must be 0 0 0 1, got {matrix[3].tolist()}.")
        matrix = matrix[:3]
    if matrix.shape != (3, 4):
        raise ConfigError(f"{option(name)} must have shape [3, 4] or [4, 4], got {list(matrix.shape)}.")
    fault = pose_fault(matrix)
    if fault is not None:
        raise ConfigError(f"The {option(name)} {fault}.", hint="A pose is camera-to-world: a rotation and a position.")
    return matrix


def size_of(value: Any, name: str = "size") -> tuple[int, int] | None:
    """Width and height in pixels; None stays None."""
    if value is None:
        return None
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
        raise ConfigError(f"{option(name)} must be (width, height) in pixels, such as (320, 240), got {value!r}.")
    return whole(value[0], name), whole(value[1], name)


def colour(value: Any, name: str = "background") -> tuple[float, float, float]:
    """Red, green and blue in 0..1, from three numbers or the name of a colour."""
    if isinstance(value, str):
        found: tuple[int, ...] = ()
        with contextlib.suppress(ValueError):
            found = ImageColor.getrgb(value)
        if len(found) != 3:
            raise ConfigError(
                f"{option(name)}: there is no colour {value!r}.",
                hint="Give a name such as 'white' or '#ff8000', or red, green and blue in 0..1.",
            )
        return found[0] / 255, found[1] / 255, found[2] / 255
    values = numbers(value, name)
    if values.shape != (3,) or not ((values >= 0) & (values <= 1)).all():
        hint = "Divide by 255." if values.shape == (3,) and values.max() > 1 else ""
        raise ConfigError(f"{option(name)} must be red, green and blue in 0..1, got {value!r}.", hint=hint)
    red, green, blue = (float(v) for v in values)
    return red, green, blue
