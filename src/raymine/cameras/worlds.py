"""The two worlds of a scene: that of its own files, and the normalised one, in which raymine trains and renders.

`Scene.normalisation` takes the first to the second: it centres, turns and scales (`scenes/normalise.py` chooses how).
Scenes in Blender's format keep their coordinates, so their two worlds are the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from raymine.contracts import Scene
from raymine.errors import ConfigError

from .poses import apply_similarity


def to_normalised(scene: Scene, values: ArrayLike) -> np.ndarray:
    """Poses [..., 3, 4] or [..., 4, 4], or points [..., 3], of the scene's own world -> the normalised world, float64.

    Poses are camera-to-world with x right, y up, z backward. Camera centres and points are moved, turned and scaled;
    rotations are only turned. `ConfigError` for any other shape.
    """
    return _moved(scene.normalisation, values)


def from_normalised(scene: Scene, values: ArrayLike) -> np.ndarray:
    """The inverse of `to_normalised`: poses or points of the normalised world -> the scene's own world, float64."""
    return _moved(np.linalg.inv(scene.normalisation), values)


def _moved(matrix: np.ndarray, values: ArrayLike) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Poses and points must be arrays of numbers: {error}.") from error
    if array.ndim >= 2 and array.shape[-2:] in ((3, 4), (4, 4)):
        moved = array.copy()
        moved[..., :3, :] = apply_similarity(matrix, array[..., :3, :])
        return moved
    if array.ndim >= 1 and array.shape[-1] == 3:
        return array @ matrix[:3, :3].T + matrix[:3, 3]
    raise ConfigError(
        f"Poses must have shape [..., 3, 4] or [..., 4, 4], and points [..., 3], got {list(array.shape)}."
    )
