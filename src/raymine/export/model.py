"""A trained model as exporters see it: densities and colours at points, and what the training cameras see.

Everything here is in the normalised world. `Placement` takes results to the world that the user asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Camera, Field, FieldInput, Rays, Renderer, Sampler, Scene, activations_of
from raymine.errors import ConfigError
from raymine.kernels.composite.op import composite
from raymine.rays import rays_for_camera
from raymine.render import SEEN, first_pass
from raymine.samplers.occupancy import OccupancySampler
from raymine.toolkit.boxes import Crossing, intersect
from raymine.toolkit.occupancy_update import above_limit

from .paths import novel_camera

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, the part of it that is done, and all of it."""

World = Literal["scene", "normalised"]

_POINTS = 1 << 18
_RAYS = 1 << 13


def no_progress(stage: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


class Hits(NamedTuple):
    """What rays [R] hit: points [R, 3], depth [R] where half of the opacity is reached, opacity [R], colour [R, 3].

    Colour is that of the ray without a background, divided by its opacity. share [R]: the part of the ray's weight that
    lies near `depth`. It is small where a ray passes an edge and goes on to what is behind.
    """

    points: Tensor
    depth: Tensor
    opacity: Tensor
    colour: Tensor
    share: Tensor


@dataclass(frozen=True, eq=False)
class ExportModel:
    """A trained field with its sampler, its renderer and its scene.

    views: the cameras of the training images; poses [I, 3, 4] float64: their poses, refined if the run refined them.
    time: in 0..1, the moment of a dynamic scene that is exported; None for a static one. step: of the checkpoint that
    it is of, which files record; None where it is not known.
    """

    field: Field
    sampler: Sampler
    renderer: Renderer
    scene: Scene
    views: tuple[Camera, ...]
    poses: np.ndarray
    device: torch.device
    time: float | None = None
    step: int | None = None

    @torch.no_grad()
    def raw_density(self, points: Tensor, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """Points [n, 3] -> density before activation [n], on the model's device."""
        found = torch.empty(len(points), device=self.device)
        for start in range(0, len(points), _POINTS):
            part = points[start : start + _POINTS].to(self.device)
            found[start : start + len(part)] = self.field.density(part, self._times(len(part))).float()
            if progress is not None:
                progress(start + len(part), len(points))
        return found

    def density(self, points: Tensor) -> Tensor:
        """Points [n, 3] -> density [n] per normalised unit. Not masked by the occupancy grid."""
        return activations_of(self.field).density(self.raw_density(points))

    @torch.no_grad()
    def output(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Pre-activations at points [n, 3] seen along unit directions [n, 3]: colour [n, 3], density [n]."""
        colour, density = torch.empty(len(points), 3, device=self.device), torch.empty(len(points), device=self.device)
        for start in range(0, len(points), _POINTS):
            at = slice(start, start + _POINTS)
            place, along = points[at].to(self.device), directions[at].to(self.device)
            out = self.field.forward(FieldInput(place, along, self._times(len(place))))
            colour[at], density[at] = out.colour.float(), out.density.float()
        return colour, density

    def colour(self, points: Tensor, directions: Tensor) -> Tensor:
        """Points [n, 3] seen along unit directions [n, 3] -> colour [n, 3] in 0..1."""
        return activations_of(self.field).colour(self.output(points, directions)[0])

    def normals(self, points: Tensor, radius: float) -> Tensor:
        """Unit normals [n, 3]: opposite to the gradient of the raw density, by differences over `radius`.

        The raw density is about the logarithm of the density, so a nearly opaque inside does not outweigh the surface.
        """
        steps = torch.eye(3, device=points.device) * radius
        slope = [self.raw_density(points + step) - self.raw_density(points - step) for step in steps]
        return torch.nn.functional.normalize(-torch.stack(slope, -1), dim=-1)

    @torch.no_grad()
    def occupied(self, points: Tensor) -> Tensor:
        """[n] bool: whether points [n, 3] lie in occupied cells. Outside of those the field was never trained.

        Without an occupancy grid, all points within the bounds of the scene count as occupied.
        """
        bounds = self.scene.bounds
        low, high = (torch.tensor(side, device=points.device) for side in (bounds.low, bounds.high))
        unit = (points - (low + high) / 2) / ((high - low) / 2)
        reach = unit.abs().amax(-1)
        level = torch.log2(reach.clamp_min(1e-12)).ceil().clamp_min(0).long()
        inside = level < bounds.levels
        if not isinstance(self.sampler, OccupancySampler):
            return inside
        res = self.sampler.config.resolution
        if not self.sampler.swept:
            return inside
        filled = above_limit(self.sampler.values, self.sampler.config.threshold).to(points.device)
        cell = ((unit / 2.0 ** level.clamp_max(bounds.levels - 1)[:, None] + 1) * (res / 2)).long().clamp(0, res - 1)
        row = (cell[:, 0] * res + cell[:, 1]) * res + cell[:, 2]
        return inside & filled[level.clamp_max(bounds.levels - 1), row]

    @torch.no_grad()
    def trace(self, rays: Rays, near: float = 0.01) -> Hits:
        """What rays [R] hit. Depth is the distance at which half of a ray's opacity is reached; 0 where nothing is.

        near: weight counts for `Hits.share` where it lies within this multiple of the depth from it.
        """
        ends = range(0, len(rays), _RAYS)
        parts = [self._trace(rays.slice(start, min(start + _RAYS, len(rays))), near) for start in ends]
        return Hits(*(torch.cat(each) for each in zip(*parts, strict=True)))

    def _trace(self, rays: Rays, near: float) -> Hits:
        samples = self.sampler.sample(rays, self.field).samples
        act = activations_of(self.field)
        output, _ = first_pass(self.field, rays, samples, 1e-4, SEEN)
        nothing = torch.zeros(len(rays), 3, device=rays.origins.device)
        density, colour = act.density(output.density), act.colour(output.colour)
        seen, opacity, _, weights = composite(density, colour, samples, nothing, 1e-4)
        # The first sample of each ray at which half of the ray's weight has been passed.
        total = torch.cumsum(weights.double(), 0)
        before = (total - weights)[samples.first.clamp_max(max(0, len(samples) - 1))] if len(samples) else total
        depth, share = opacity.new_zeros(len(rays)), opacity.new_zeros(len(rays))
        if len(samples):
            within = total - before[samples.ray_id]
            past = within >= 0.5 * opacity[samples.ray_id].double()
            middle = (samples.t_start + samples.t_end) * 0.5
            first = torch.full_like(depth, torch.inf)
            first.scatter_reduce_(0, samples.ray_id[past], middle[past], "amin")
            depth = torch.where(first.isfinite() & (opacity > 0), first, 0.0)
            close = (middle - depth[samples.ray_id]).abs() <= near * depth[samples.ray_id]
            share.index_add_(0, samples.ray_id, weights * close)
            share = share / opacity.clamp_min(1e-6)
        points = rays.origins + rays.directions * depth[:, None]
        return Hits(points, depth, opacity, seen / opacity.clamp_min(1e-6)[:, None], share)

    def view_rays(self, index: int, longest: int, *, enlarge: bool = False) -> tuple[Camera, Rays]:
        """All rays of a training view without its distortion, and its pinhole camera.

        longest: shrink the view so that no side has more pixels. enlarge: and a smaller view to this size.
        """
        camera = shrunk(novel_camera(self.views[index]), longest)
        most = max(camera.width, camera.height)
        if enlarge and most < longest:
            camera = camera.resized(camera.width * longest // most, camera.height * longest // most)
        return camera, rays_for_camera(camera, self.poses[index], self.scene.bounds, self.time, self.device)

    def spread_views(self, count: int) -> Iterator[int]:
        """Up to `count` training views, evenly spread."""
        count = min(count, len(self.views))
        yield from (int(i) for i in np.unique(np.linspace(0, len(self.views) - 1, count).round()))

    def _times(self, count: int) -> Tensor | None:
        return None if self.time is None else torch.full((count,), self.time, device=self.device)


def shrunk(camera: Camera, longest: int | None) -> Camera:
    """The camera over an image of which no side is longer than `longest` pixels."""
    most = max(camera.width, camera.height)
    if longest is None or most <= longest:
        return camera
    return camera.resized(max(1, camera.width * longest // most), max(1, camera.height * longest // most))


@dataclass(frozen=True, eq=False)
class Box:
    """An axis-aligned box: low and high corners [3], normalised. `frame` [4, 4] takes its unit cube to the world."""

    frame: np.ndarray

    @staticmethod
    def between(low: np.ndarray, high: np.ndarray) -> Box:
        frame = np.eye(4)
        frame[:3, :3] = np.diag(np.asarray(high) - np.asarray(low))
        frame[:3, 3] = low
        return Box(frame)

    @property
    def sides(self) -> np.ndarray:
        """[3] lengths of the sides."""
        return np.linalg.norm(self.frame[:3, :3], axis=0)

    def points(self, unit: np.ndarray) -> np.ndarray:
        """Points [n, 3] of the unit cube -> the world."""
        return unit @ self.frame[:3, :3].T + self.frame[:3, 3]

    def contains(self, points: Tensor) -> Tensor:
        """[n] bool: whether points [n, 3] lie in the box."""
        inverse = torch.from_numpy(np.linalg.inv(self.frame)).to(points)
        unit = points @ inverse[:3, :3].T + inverse[:3, 3]
        return ((unit >= 0) & (unit <= 1)).all(-1)

    def clip(self, rays: Rays) -> Rays:
        """The parts of rays that lie in the box; a ray that misses it has no length."""
        inverse = torch.from_numpy(np.linalg.inv(self.frame)).to(rays.origins)
        unit = rays.origins.new_tensor([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]])
        origins = rays.origins @ inverse[:3, :3].T + inverse[:3, 3]
        return within(rays, intersect(origins, rays.directions @ inverse[:3, :3].T, unit))


def within(rays: Rays, crossing: Crossing) -> Rays:
    """The parts of rays that lie in a box, which they cross there; a ray that misses it has no length."""
    hit = crossing.hit[:, 0]
    near = torch.maximum(rays.near, torch.where(hit, crossing.t_near[:, 0], rays.far))
    far = torch.minimum(rays.far, torch.where(hit, crossing.t_far[:, 0], rays.near))
    return replace(rays, near=near, far=torch.maximum(near, far))


def box_of(scene: Scene, corners: tuple[float, ...] | None, world: World) -> Box:
    """The box to export: six numbers (low x, y, z, high x, y, z) in `world`, or the scene's inner box."""
    if corners is None:
        return Box.between(np.array(scene.bounds.low), np.array(scene.bounds.high))
    values = np.array(corners, dtype=np.float64)
    if values.shape != (6,) or not np.isfinite(values).all() or not (values[:3] < values[3:]).all():
        raise ConfigError(
            f"`box` must be six finite numbers, low x y z and high x y z with low < high, got {list(corners)}."
        )
    box = Box.between(values[:3], values[3:])
    return Box(scene.normalisation @ box.frame) if world == "scene" else box


@dataclass(frozen=True, eq=False)
class Placement:
    """The similarity [4, 4] from the normalised world to the world of the exported file."""

    matrix: np.ndarray

    @staticmethod
    def of(scene: Scene, world: World) -> Placement:
        return Placement(np.linalg.inv(scene.normalisation) if world == "scene" else np.eye(4))

    @property
    def scale(self) -> float:
        """File units per normalised unit."""
        return float(np.cbrt(np.linalg.det(self.matrix[:3, :3])))

    @property
    def rotation(self) -> np.ndarray:
        """[3, 3]"""
        return self.matrix[:3, :3] / self.scale

    def points(self, points: np.ndarray) -> np.ndarray:
        """[n, 3] normalised -> [n, 3] of the file, float64."""
        return points @ self.matrix[:3, :3].T + self.matrix[:3, 3]

    def vectors(self, vectors: np.ndarray) -> np.ndarray:
        """Directions [n, 3], which are turned only."""
        return vectors @ self.rotation.T

    def back(self, points: np.ndarray) -> np.ndarray:
        """The inverse of `points`."""
        inverse = np.linalg.inv(self.matrix)
        return points @ inverse[:3, :3].T + inverse[:3, 3]
