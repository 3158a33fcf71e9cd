"""Sampling with an occupancy grid: nested boxes of cells, updated while a field trains.

There are G levels. Level g covers the region of interest, scaled by 2^g about its centre, with X x Y x Z cells. A point
belongs to the finest level that contains it. A ray takes steps of length max(step, cone_angle * t) at distance t, from
its near bound on. A step becomes a sample if its midpoint lies in an occupied cell before the far bound
(`kernels/traverse`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.composite.op import visible
from raymine.kernels.packed import Samples, pack_counts
from raymine.kernels.threads import mean
from raymine.kernels.traverse.op import Grids, Stride, traverse
from raymine.toolkit.occupancy_update import AtPoints as AtPoints
from raymine.toolkit.occupancy_update import Visit, above_limit, update_values
from raymine.toolkit.occupancy_update import grid_coordinates as grid_coordinates

AlongRays = Callable[[Tensor, Tensor, Tensor], Tensor]
"""t_starts, t_ends [B], ray_indices [B] -> [B] density or opacity, after activation."""

OPAQUE = 800.0
"""An optical depth for which exp(-depth) is 0 even in float64."""


class OccupancyEstimator(torch.nn.Module):
    """An occupancy grid that remembers where a field is dense, and places samples there.

    box: 6 numbers in world units, low x, y, z and high x, y, z. resolution: cells per side, one number or three.
    levels: number of nested boxes. The state dict contains `occupancies` [G * X * Y * Z] float32 (negative: never
    visited, see `mark_invisible_cells`), `binaries` [G, X, Y, Z] bool (occupied or not), `box` [6] and `resolution`
    [3]. Until the first update every cell is occupied.
    """

    box: Tensor
    resolution: Tensor
    occupancies: Tensor
    binaries: Tensor

    def __init__(
        self, box: Sequence[float] | Tensor, resolution: int | Sequence[int] | Tensor = 128, levels: int = 1
    ) -> None:
        super().__init__()
        sides = grid_sides(resolution, levels)
        if isinstance(box, Tensor):
            checks.present(box=box)
            checks.numeric(box=box)
        corners = torch.as_tensor(box, dtype=torch.float32).detach().clone()
        if corners.shape != (6,) or not bool(corners.isfinite().all() & (corners[:3] < corners[3:]).all()):
            raise ConfigError(f"`box` must be 6 finite numbers with low < high on every axis, got {corners.tolist()}.")
        self.levels = levels
        self.register_buffer("box", corners)
        self.register_buffer("resolution", torch.tensor(sides, device=corners.device))
        self.register_buffer("occupancies", torch.zeros(levels * math.prod(sides), device=corners.device))
        self.register_buffer("binaries", torch.ones(levels, *sides, dtype=torch.bool, device=corners.device))

    @torch.no_grad()
    def sampling(
        self,
        origins: Tensor,
        directions: Tensor,
        *,
        density_fn: AlongRays | None = None,
        alpha_fn: AlongRays | None = None,
        near: float = 0.0,
        far: float = 1e10,
        t_min: Tensor | None = None,
        t_max: Tensor | None = None,
        step: float = 1e-3,
        early_stop: float = 1e-4,
        alpha_threshold: float = 0.0,
        stratified: bool = False,
        cone_angle: float = 0.0,
    ) -> Samples:
        """Packed samples of rays in occupied cells. With a callback, only visible samples are kept.

        origins, directions: [R, 3]. Distances are in units of the length of the direction.
        density_fn, alpha_fn: at most one of them; it returns the density or the opacity of samples.
        near, far: bounds of all rays; t_min, t_max [R] narrow them per ray.
        step, cone_angle: a step at distance t has length max(step, cone_angle * t).
        early_stop: samples where the transmittance is below it are dropped.
        alpha_threshold: samples whose opacity is below min(alpha_threshold, mean occupancy) are dropped.
        stratified: shift the samples of each ray by a random fraction of `step`, from torch's generator.

        Rays that miss the grid, are NaN or have a direction of zeros get no samples. Not differentiable.
        """
        if density_fn is not None and alpha_fn is not None:
            raise ConfigError("`density_fn` and `alpha_fn` were both given. Pass one of them.")
        if not step > 0:
            raise ConfigError(f"`step` must be above 0, got {step}.")
        checks.numbers(early_stop=early_stop, alpha_threshold=alpha_threshold)
        bounds = ray_bounds(origins, near, far, t_min, t_max)
        if stratified:
            bounds = bounds[0] + torch.rand_like(bounds[0]) * step, bounds[1]
        grids = Grids(self.binaries, nested_boxes(self.box, self.levels))
        samples = place_samples(origins, directions, bounds, grids, Stride(step, cone_angle))
        ask = density_fn if density_fn is not None else alpha_fn
        if ask is None or not (early_stop > 0 or alpha_threshold > 0):
            return samples
        # The mean waits for the device, and is only needed if there is a threshold.
        faint = min(alpha_threshold, float(mean(self.occupancies))) if alpha_threshold > 0 else 0.0
        return keep_visible(samples, ask, early_stop, faint, alpha=alpha_fn is not None)

    @torch.no_grad()
    def update_every_n_steps(
        self,
        step: int,
        occupancy_fn: AtPoints,
        threshold: float = 1e-2,
        ema_decay: float = 0.95,
        warmup_steps: int = 256,
        n: int = 16,
    ) -> None:
        """Every n steps, update some cells: value = max(ema_decay * value, occupancy at a random point of the cell).

        occupancy_fn: world positions [k, 3] -> occupancy [k] or [k, 1]. Before `warmup_steps` every cell is visited;
        afterwards a random quarter of the cells and up to as many occupied cells. A cell is occupied if its value
        exceeds min(threshold, mean value). A visit that gives NaN is ignored; infinity counts as 1e10. Not
        differentiable.
        """
        if n < 1:
            raise ConfigError(f"`n` must be 1 or more, got {n}.")
        if not self.training:
            raise ConfigError("the occupancy grid is in evaluation mode and stays as it is. Call `train()` first.")
        if step % n == 0:
            cells = cells_to_visit(self.occupancies, self.binaries, step < warmup_steps)
            boxes = nested_boxes(self.box, self.levels)
            visit(self.occupancies, cells, self.binaries.shape[1:], boxes, occupancy_fn, ema_decay)
            self.binaries = occupied_cells(self.occupancies, threshold).view(self.binaries.shape)

    @torch.no_grad()
    def mark_invisible_cells(
        self, K: Tensor, c2w: Tensor, width: int, height: int, near_plane: float = 0.0, chunk: int = 32**3
    ) -> None:
        """Exclude cells that no camera sees, or that are nearer to some camera that sees them than `near_plane`.

        Their value becomes -1, so they are never visited again, and they become empty. Call this once, before training.
        K: [I, 3, 3] or [1, 3, 3] intrinsics in pixels. c2w: [I, 3, 4] or [I, 4, 4] poses with x right, y down,
        z forward. width, height: of the images in pixels. near_plane: depth in world units. chunk: cells at a time.
        """
        boxes = nested_boxes(self.box, self.levels)
        seen = seen_cells(self.binaries.shape[1:], boxes, K, c2w, (width, height), near_plane, chunk)
        self.occupancies[~seen] = -1.0
        self.binaries = self.binaries & seen.view(self.binaries.shape)


MOST_LEVELS = 64
"""Most nested boxes. The largest one is then 2^63 times as large as the smallest."""


def grid_sides(resolution: int | Sequence[int] | Tensor, levels: int) -> list[int]:
    """The three sides of a grid of `levels` levels, in cells. ConfigError if it has too many cells, or none."""
    sides = [resolution] * 3 if isinstance(resolution, int) else [int(side) for side in resolution]
    if len(sides) != 3 or min(sides) < 1 or levels < 1:
        raise ConfigError(f"the grid needs 3 sides and levels of 1 or more, got {sides} and {levels}.")
    if levels > MOST_LEVELS or levels * math.prod(sides) >= 2**31:
        raise ConfigError(
            f"the grid must have at most {MOST_LEVELS} levels and fewer than 2^31 cells, got {levels} levels of "
            f"{sides}. Lower the resolution."
        )
    return sides


def ray_bounds(
    origins: Tensor, near: float, far: float, t_min: Tensor | None, t_max: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Near and far bounds [R] of rays with origins [R, 3]: near .. far, narrowed by t_min and t_max [R]."""
    checks.reals(origins=origins, t_min=t_min, t_max=t_max)
    checks.numbers(near=near, far=far)
    if origins.ndim != 2 or origins.shape[1] < 1:
        raise ConfigError(f"`origins` must have shape [R, 3], got {list(origins.shape)}.")
    for name, value in (("t_min", t_min), ("t_max", t_max)):
        if value is not None and value.shape != origins.shape[:1]:
            raise ConfigError(f"`{name}` must have shape {list(origins.shape[:1])}, got {list(value.shape)}.")
    start, end = torch.full_like(origins[:, 0], near), torch.full_like(origins[:, 0], far)
    start = start if t_min is None else torch.maximum(start, t_min)
    return start, end if t_max is None else torch.minimum(end, t_max)


def place_samples(
    origins: Tensor, directions: Tensor, bounds: tuple[Tensor, Tensor], grids: Grids, stride: Stride
) -> Samples:
    """Packed samples of rays in occupied cells: origins, directions [R, 3]; bounds: near and far [R].

    Rays that are NaN get no samples. Not differentiable.
    """
    return traverse(origins, directions, bounds, grids, stride).samples


def keep_visible(samples: Samples, ask: AlongRays, early_stop: float, faint: float, *, alpha: bool) -> Samples:
    """The samples with a transmittance of at least `early_stop` and, if faint > 0, an opacity of at least `faint`.

    ask: returns the densities of samples; with `alpha`, their opacities. A sample whose value is NaN counts as opaque.
    It is kept, so that the caller notices it, and it hides the samples behind it. Not differentiable.
    """
    if not len(samples):
        return samples
    value = ask(samples.t_start, samples.t_end, samples.ray_id)
    if value.shape == (*samples.t_start.shape, 1):
        value = value[:, 0]
    if value.shape != samples.t_start.shape:
        raise ConfigError(f"the callback must give {list(samples.t_start.shape)} values, got {list(value.shape)}.")
    checks.alike(t_start=samples.t_start, t_end=samples.t_end)
    checks.numeric(t_start=samples.t_start, value=value)
    ray_id = checks.within("ray_id", samples.ray_id, samples.n_rays, value.device, len(samples))
    value, length = value.detach().float(), (samples.t_end - samples.t_start).clamp_min(1e-30)
    optical = -torch.log1p(-value.clamp(0, 1)) if alpha else value * length
    opaque = optical.isnan()
    optical = torch.where(opaque, OPAQUE, optical).clamp(-OPAQUE, OPAQUE)
    unit = replace(samples, t_start=torch.zeros_like(optical), t_end=torch.ones_like(optical))
    seen = visible(optical, unit, early_stop, -math.inf)
    if faint > 0:
        seen &= opaque | ((value if alpha else -torch.expm1(-optical)) >= faint)
    count = torch.zeros_like(samples.count).index_add_(0, ray_id, seen.to(samples.count.dtype))
    kept = seen.nonzero()[:, 0]  # the one wait for the device
    return Samples(samples.t_start[kept], samples.t_end[kept], ray_id[kept], *pack_counts(count))


def nested_boxes(box: Tensor, levels: int) -> Tensor:
    """[G, 6]: the box [6], followed by boxes that are each twice as large as the one before, about the same centre."""
    checks.numeric(box=box)
    checks.shapes([("box", box, (6,))], box.device)
    checks.whole(1, MOST_LEVELS, levels=levels)
    centre, half = (box[:3] + box[3:]) / 2, (box[3:] - box[:3]) / 2
    return torch.stack([torch.cat((centre - half * 2**g, centre + half * 2**g)) for g in range(levels)])


def cells_to_visit(values: Tensor, occupied: Tensor, every: bool, some: int | None = None) -> list[Tensor]:
    """Per level, indices [k] int64 of cells to visit. Excluded cells (values below 0) are left out.

    values [G * cells], occupied [G, X, Y, Z] bool. If `every`, all cells are visited. Otherwise `some` random cells
    (None: a quarter of the cells) and up to as many occupied cells; a cell may be listed more than once.
    """
    checks.together(values=values, occupied=occupied)
    checks.reals(values=values)
    if occupied.ndim != 4 or not len(occupied) or values.shape != (occupied.numel(),):
        raise ConfigError(
            f"`values` must have shape [G * X * Y * Z] and `occupied` [G, X, Y, Z], got {list(values.shape)} and "
            f"{list(occupied.shape)}."
        )
    checks.present(values=values)
    levels = values.reshape(occupied.shape[0], -1)
    if every:
        return [(level >= 0).nonzero()[:, 0] for level in levels]
    chosen = []
    some = max(1, levels.shape[1] // 4) if some is None else some
    checks.whole(some=some)
    if some and not levels.shape[1]:
        raise ConfigError(f"`occupied` must have cells, got shape {list(occupied.shape)}.")
    for level, full in zip(levels, occupied.flatten(1), strict=True):
        anywhere = torch.randint(len(level), (some,), device=level.device)
        anywhere = anywhere[level[anywhere] >= 0]
        dense = full.nonzero()[:, 0]
        if some < len(dense):
            dense = dense[torch.randint(len(dense), (some,), device=level.device)]
        chosen.append(torch.cat((anywhere, dense)))
    return chosen


def visit(
    values: Tensor, cells: list[Tensor], sides: torch.Size, boxes: Tensor, occupancy_fn: AtPoints, decay: float
) -> None:
    """Update values [G * cells] in place: evaluate the occupancy at a random point of each listed cell.

    cells: per level, indices [k]. sides: (X, Y, Z). boxes [G, 6]. NaN is ignored. Not differentiable.
    """
    checks.reals(values=values, boxes=boxes)
    checks.inplace(values=values)
    checks.shapes(
        [("boxes", boxes, (len(cells), 6)), ("values", values, (len(cells) * math.prod(sides),))], values.device
    )
    visits = random_points(cells, sides, boxes)
    update_values(values.view(len(boxes), -1), visits, occupancy_fn, decay, skip_nan=True)


def random_points(cells: Sequence[Tensor], sides: torch.Size, boxes: Tensor) -> Iterator[Visit]:
    """Per level, a uniformly random point in each listed cell, from torch's generator; boxes [G, 6].

    The points of a level are drawn when the iterator reaches it.
    """
    checks.reals(boxes=boxes)
    checks.shapes([("boxes", boxes, (len(cells), 6))], boxes.device)
    res = torch.tensor(sides, device=boxes.device)
    for listed, box in zip(cells, boxes, strict=True):
        checks.together(boxes=boxes, cells=listed)
        at = grid_coordinates(listed, sides)
        unit = (at + torch.rand_like(at, dtype=torch.float32)) / res
        yield Visit(listed, box[:3] + unit * (box[3:] - box[:3]))


def occupied_cells(values: Tensor, threshold: float) -> Tensor:
    """[n] bool: values [n] above min(threshold, mean). The mean is over all levels, without excluded cells (< 0)."""
    checks.reals(values=values)
    return above_limit(values, threshold, counted=values >= 0)


def seen_cells(
    sides: torch.Size, boxes: Tensor, K: Tensor, c2w: Tensor, size: tuple[int, int], near_plane: float, chunk: int
) -> Tensor:
    """[G * cells] bool: cells that some camera sees, and that no camera sees at a depth below near_plane.

    Each cell is tested at one point. Along an axis, the points of its n cells are evenly spaced from one face of the
    box to the other, both included (n = 1: the middle).
    """
    checks.present(K=K, c2w=c2w)
    checks.numeric(K=K)
    checks.numeric(c2w=c2w)
    if K.shape[1:] != (3, 3) or c2w.ndim != 3 or c2w.shape[1:] not in ((3, 4), (4, 4)) or len(K) not in (1, len(c2w)):
        raise ConfigError(
            "cameras must be K [I, 3, 3] or [1, 3, 3] and c2w [I, 3, 4] or [I, 4, 4], got "
            f"{list(K.shape)} and {list(c2w.shape)}."
        )
    if chunk < 1:
        raise ConfigError(f"`chunk` must be 1 or more, got {chunk}.")
    dtype, device = boxes.dtype, boxes.device
    project = partial(_project, K.to(device, dtype), c2w[:, :3].to(device, dtype))
    res = torch.tensor(sides, device=device)
    cells = torch.arange(math.prod(sides), device=device)
    seen = []
    for box in boxes:
        for part in cells.split(chunk):
            unit = torch.where(res > 1, grid_coordinates(part, sides) / (res - 1).clamp_min(1), 0.5)
            u, v, depth = project(box[:3] + unit * (box[3:] - box[:3]))
            inside = (depth >= 0) & (u >= 0) & (u < size[0]) & (v >= 0) & (v < size[1])
            seen.append((inside & (depth >= near_plane)).any(0) & ~(inside & (depth < near_plane)).any(0))
    return torch.cat(seen)


def _project(K: Tensor, c2w: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """World points [n, 3] -> u, v [I, n] in pixels and depth [I, n] in world units."""
    turn = c2w[:, :, :3].transpose(1, 2)
    local = turn @ points.T - turn @ c2w[:, :, 3:]
    x, y, depth = (K @ local).unbind(1)
    return x / depth, y / depth, depth
