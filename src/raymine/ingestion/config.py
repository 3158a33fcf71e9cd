"""Options of `raymine ingest`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from raymine.errors import ConfigError, MissingExtraError, option

Matching = Literal["auto", "exhaustive", "sequential"]
Mapper = Literal["incremental", "global"]
Features = Literal["robust", "fast"]
Lens = Literal["auto", "pinhole", "simple-radial", "opencv", "fisheye"]

MOST_EXHAUSTIVE, MOST_EXHAUSTIVE_FRAMES = 120, 60
"""Photos, and frames of a video, up to which `auto` compares every picture with every other one."""
_MODELS = {
    "auto": "SIMPLE_RADIAL",
    "pinhole": "PINHOLE",
    "simple-radial": "SIMPLE_RADIAL",
    "opencv": "OPENCV",
    "fisheye": "OPENCV_FISHEYE",
}


@dataclass(frozen=True)
class IngestConfig:
    """How poses are computed.

    frames: pictures that are taken from a video. matching: which pairs are compared; `auto` decides by their number.
    features: `robust` ones are adapted to the slope of surfaces, so photos from farther apart match; `fast` ones are
    plain SIFT. lens: camera model that is fitted. undistort: write pictures without lens distortion. feature_size:
    pictures are reduced to this many pixels on the longer side to find features; the scene keeps their full size.
    threads: 0 uses all cores that the process may use.
    """

    frames: int = 60
    matching: Matching = "auto"
    mapper: Mapper = "incremental"
    features: Features = "robust"
    lens: Lens = "auto"
    undistort: bool = False
    feature_size: int = 2000
    threads: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("matching", Matching), ("mapper", Mapper), ("features", Features), ("lens", Lens)):
            value = getattr(self, name)
            if value not in get_args(choices):
                raise ConfigError(f"{option(name)} must be one of {', '.join(get_args(choices))}, got {value!r}.")
        for name, low, high in (("frames", 3, 5000), ("feature_size", 200, 20_000), ("threads", 0, 1024)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{option(name)} must be between {low} and {high}, got {value}.")

    def matching_for(self, count: int, video: bool) -> Literal["exhaustive", "sequential"]:
        """Which pairs of `count` pictures are compared."""
        if self.matching != "auto":
            return self.matching
        return "exhaustive" if count <= (MOST_EXHAUSTIVE_FRAMES if video else MOST_EXHAUSTIVE) else "sequential"

    @property
    def model(self) -> str:
        """COLMAP's name of the camera model."""
        return _MODELS[self.lens]


OLDEST_PYCOLMAP = (4, 1, 1)


def require_pycolmap() -> Any:
    """The module `pycolmap`; `MissingExtraError` if it is not installed, `ConfigError` if it is too old."""
    try:
        import pycolmap
    except ImportError as error:
        raise MissingExtraError("pycolmap", "ingest", "`raymine ingest`") from error
    found = tuple(int(part) for part in pycolmap.__version__.split(".")[:3] if part.isdigit())
    if found < OLDEST_PYCOLMAP:
        raise ConfigError(
            f"`raymine ingest` needs pycolmap 4.1.1 or newer; {pycolmap.__version__} is installed.",
            hint="Install it with: pip install --upgrade 'raymine[ingest]'",
        )
    return pycolmap
