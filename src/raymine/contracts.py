"""Records and protocols that cross a boundary, and the one vocabulary of shapes.

Dimension legend, used in every signature and docstring:

    R  rays of a batch              B  samples of a batch, packed (all rays end to end)
    b  samples selected to train    K  candidate steps along a ray
    L  resolution levels of a grid  F  features per grid entry
    G  occupancy levels (nested boxes, each twice the one before)
    n  points in general            C  image channels
    H, W  image height and width    I  images

Conventions: distances are in world units after normalisation; colours are in 0..1; directions are unit length; a pose
is camera-to-world with x right, y up, z backward (see `raymine.cameras`, which owns every conversion). Packed samples
lie ray by ray: ray r owns rows `first[r] : first[r] + count[r]`, ordered by distance.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from raymine.kernels.packed import Samples as Samples

CameraModel = Literal["pinhole", "opencv", "fisheye"]
Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Camera:
    """Intrinsics in pixels of an image `width` x `height`; the centre of the first pixel is (0.5, 0.5).

    `distortion` is () for pinhole; (k1, k2, p1, p2, k3) for opencv; (k1, k2, k3, k4) for fisheye (equidistant).
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    model: CameraModel = "pinhole"
    distortion: tuple[float, ...] = ()

    def resized(self, width: int, height: int) -> Camera:
        """The same camera over an image of another size; x and y scale separately."""
        sx, sy = width / self.width, height / self.height
        return replace(
            self, width=width, height=height, fx=self.fx * sx, fy=self.fy * sy, cx=self.cx * sx, cy=self.cy * sy
        )


@dataclass(frozen=True)
class Frame:
    """One posed image. `camera` indexes `Scene.cameras`; `pose` is [3, 4] float64 camera-to-world."""

    image: Path
    camera: int
    pose: np.ndarray
    split: Split = "train"
    time: float | None = None
    mask: Path | None = None
    near: float | None = None
    far: float | None = None


@dataclass(frozen=True)
class Bounds:
    """Where samples may lie: an inner box (level 0 of the occupancy grid) and `levels` - 1 doublings of it.

    A scene with `levels` == 1 is bounded. `near` and `far` clip every ray, in world units.
    """

    low: tuple[float, float, float] = (-1.5, -1.5, -1.5)
    high: tuple[float, float, float] = (1.5, 1.5, 1.5)
    levels: int = 1
    near: float = 0.05
    far: float = 1e3

    @property
    def unbounded(self) -> bool:
        return self.levels > 1


@dataclass(frozen=True)
class Scene:
    """Everything known about a scene before an image is decoded.

    `normalisation` is the [4, 4] similarity already applied to every pose (source world to raymine world).
    `background` is the colour behind RGBA images when a fixed one is needed (evaluation); None means that images are
    opaque. `decisions` are sentences for the user: which format, which split, which scale and why. `warnings` are
    survivable problems.
    """

    root: Path
    format: str
    cameras: tuple[Camera, ...]
    frames: tuple[Frame, ...]
    bounds: Bounds
    background: tuple[float, float, float] | None
    normalisation: np.ndarray
    downscale: int = 1
    decisions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def of_split(self, split: Split) -> tuple[int, ...]:
        """Indices into `frames` of one split, in file order."""
        return tuple(i for i, f in enumerate(self.frames) if f.split == split)

    @property
    def dynamic(self) -> bool:
        return any(f.time is not None for f in self.frames)


@dataclass(frozen=True)
class Rays:
    """origins, directions [R, 3]; near, far [R]; time [R] in 0..1 for dynamic scenes, else None."""

    origins: Tensor
    directions: Tensor
    near: Tensor
    far: Tensor
    time: Tensor | None = None

    def __len__(self) -> int:
        return self.origins.shape[0]

    def slice(self, start: int, stop: int) -> Rays:
        time = None if self.time is None else self.time[start:stop]
        return Rays(
            self.origins[start:stop], self.directions[start:stop], self.near[start:stop], self.far[start:stop], time
        )


@dataclass(frozen=True)
class FieldInput:
    """What a field is asked: positions, directions [n, 3] in world units; time [n] or None.

    `features` [n, anything] is what the field's own density pass kept for these points (see `KeepsFeatures`), or None.
    """

    positions: Tensor
    directions: Tensor
    time: Tensor | None = None
    features: Tensor | None = None

    def rows(self, index: Tensor) -> FieldInput:
        """The points at `index` [m]."""
        time = None if self.time is None else self.time[index]
        features = None if self.features is None else self.features[index]
        return FieldInput(self.positions[index], self.directions[index], time, features)


@dataclass(frozen=True)
class FieldOutput:
    """Pre-activations of n points: colour [n, 3] before the sigmoid, density [n] before the exponential."""

    colour: Tensor
    density: Tensor


@dataclass(frozen=True)
class Rendered:
    """Per ray: colour [R, 3] over the background, opacity [R], depth [R] (mean distance); weights [B] per sample."""

    colour: Tensor
    opacity: Tensor
    depth: Tensor
    weights: Tensor


@dataclass(frozen=True)
class LossReport:
    """`total` is what is minimised (a 0-d tensor with a graph); `mse` [] is the plain colour error for PSNR.

    `error` [R] is the mean square over the channels of each ray, before any weight.
    """

    total: Tensor
    mse: Tensor
    error: Tensor


@dataclass(frozen=True)
class Selection:
    """Samples chosen to train on: index [b] int64 into the batch; weight [b] multiplies their output gradients.

    tau [] is how concentrated the gradients of this step were, budget [] how many samples were worth training on.
    Places that turned out not to be needed have weight 0 (see `mining.capacity`).
    """

    index: Tensor
    weight: Tensor
    tau: Tensor
    budget: Tensor


@dataclass(frozen=True)
class StepReport:
    """What one training step did, as plain numbers (reading it may synchronise; the loop reads it rarely).

    lost: rays that found no room for their samples.
    """

    step: int
    loss: float
    mse: float
    rays: int
    marched: int
    trained: int
    learning_rate: float
    finite: bool = True
    extra: dict[str, float] = field(default_factory=dict)
    lost: int = 0


class Field(Protocol):
    """A radiance field: any `torch.nn.Module` with these two methods works with every sampler and policy.

    `density` is the cheap part (no direction needed); both return pre-activations, and the density pre-activation of
    `forward` equals that of `density` at the same points. `forward` is differentiable in the parameters.
    """

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """[n, 3] world positions -> [n] density before activation."""
        ...

    def forward(self, query: FieldInput) -> FieldOutput:
        """[n] points with directions -> pre-activations."""
        ...


@runtime_checkable
class KeepsFeatures(Protocol):
    """A field whose density pass yields work that `forward` need not repeat, handed back in `FieldInput.features`."""

    def density_and_features(self, positions: Tensor, time: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[n, 3] -> [n] density before activation, and [n, anything] features; neither has a graph."""
        ...


@runtime_checkable
class SeesAlongRays(Protocol):
    """A field that is quicker when asked about whole rays at once, since it stops where they are opaque.

    `along_rays`: whether it is where its parameters are now; else it is asked as any other field.
    """

    @property
    def along_rays(self) -> bool: ...

    def infer(
        self, rays: Rays, samples: Samples, stop: float, faint: float, *, colour: bool, keep: bool
    ) -> tuple[FieldOutput, Tensor]:
        """Pre-activations [B] without a graph, and features [B, anything] for `FieldInput`, or [0, anything].

        colour: whether colours are wanted; keep: whether features are.

        It is asked at midpoints. Density is `render.HIDDEN` where a sample is behind a transmittance below `stop` or
        its own opacity is below `faint`.
        """
        ...


@runtime_checkable
class PullsBack(Protocol):
    """A field that turns output gradients into parameter gradients quicker than autograd does."""

    def pull_back(self, query: FieldInput, colour: Tensor, density: Tensor) -> None:
        """Set `.grad` of every parameter from gradients of the pre-activations: colour [n, 3], density [n]."""
        ...


class Sampler(Protocol):
    """Places packed samples along rays."""

    def sample(self, rays: Rays, jitter: Tensor | None = None) -> Samples:
        """`jitter` [R] in 0..1 shifts each ray's samples by a share of a step; None leaves them in place."""
        ...


class ImageSource(Protocol):
    """Decoded pixels of a scene, without the images having to be in memory."""

    @property
    def sizes(self) -> np.ndarray:
        """[I, 2] int64: height and width of each image."""
        ...

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """[R] indices -> [R, 4] float32 straight-alpha RGBA in 0..1 (alpha 1 for opaque images), [R] mask weight."""
        ...

    def image(self, index: int) -> np.ndarray:
        """One whole image, [H, W, 4] uint8."""
        ...

    def mask(self, index: int) -> np.ndarray | None:
        """Its mask, [H, W] uint8, 0 where a pixel is to be ignored; None where it has none."""
        ...


class Renderer(Protocol):
    """Renders any number of rays without a graph, in chunks of its own choosing."""

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        """[R] rays over one background colour [3]; `Rendered.weights` is empty here."""
        ...
