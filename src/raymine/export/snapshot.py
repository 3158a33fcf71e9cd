"""A compact snapshot of a hash-grid field: one safetensors file, read by `snapshot_loader`, which needs raymine not.

The table is stored as 16-bit integers with a scale for each 4 rows. float16 would be as small, but changed
pre-activations of a trained field by up to 0.02, and one scale for each level by 0.0024. Where integers change them by
1e-3 or more, the table is stored in single precision, and the report says so. The networks, which are small, are in
single precision, and the occupancy grid is bits.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raymine._version import __version__
from raymine.errors import ConfigError
from raymine.fields.hash_field import HashField
from raymine.files import atomic_file, replacing
from raymine.kernels.ngp_step.op import DEGREE
from raymine.samplers.occupancy import OccupancySampler
from raymine.toolkit.occupancy_update import above_limit

from . import snapshot_loader
from .model import ExportModel

CLOSE = 1e-3
"""Largest difference of a pre-activation from the model's."""

_PROBES = 20_000


def hash_field(model: ExportModel, what: str) -> HashField:
    """The field of the model, where it is a hash-grid field; `ConfigError` for any other. what: for the message."""
    if type(model.field) is not HashField:
        raise ConfigError(
            f"{what} holds a hash-grid field; this run has a {type(model.field).__name__}.",
            hint="Train with the recipe `ngp`, or export a mesh, points or splats.",
        )
    return model.field


def description_of(model: ExportModel) -> dict[str, Any]:
    """What the loader needs to know besides the tensors."""
    field = hash_field(model, "A snapshot")
    grid, act = field.config.grid, field.activations.density
    levels = [
        {
            "scale": float(grid.scales[i]),
            "resolution": int(grid.resolutions[i]),
            "entries": int(grid.entries[i]),
            "offset": int(grid.offsets[i]),
            "dense": bool(grid.dense[i]),
        }
        for i in range(grid.levels)
    ]
    found: dict[str, Any] = {
        "format": snapshot_loader.FORMAT,
        "raymine": __version__,
        "levels": levels,
        "bands": DEGREE,
        "density_layers": len(field.density_layers),
        "colour_layers": len(field.colour_layers),
        "low": field.low.tolist(),
        "high": field.high.tolist(),
        "unbounded": field.unbounded,
        "shift": act.shift,
        "cap": act.cap,
        "normalisation": model.scene.normalisation.tolist(),
    }
    if model.step is not None:
        found["step"] = model.step
    sampler = model.sampler
    if isinstance(sampler, OccupancySampler) and sampler.swept:
        found["occupancy"] = {"levels": model.scene.bounds.levels, "resolution": sampler.config.resolution}
    return found


def tensors_of(model: ExportModel, *, short: bool) -> dict[str, Tensor]:
    """The tensors of the loader's field, on the CPU. short: the table as 16-bit integers."""
    field = hash_field(model, "A snapshot")
    table = field.table.detach().cpu()
    found = {"table": table.float().contiguous()}
    if short:
        blocks = table.float().reshape(-1, 4 * table.shape[1])
        scales = blocks.abs().amax(1).clamp_min(1e-12) / 32767
        found = {"table": (blocks / scales[:, None]).round().to(torch.int16).view(table.shape), "scales": scales}
    # Faded levels scale the first layer.
    weights = (field._first_layer, *list(field.density_layers)[1:])
    found |= {f"density.{i}": weight.detach().float().cpu().contiguous() for i, weight in enumerate(weights)}
    found |= {f"colour.{i}": weight.detach().float().cpu().contiguous() for i, weight in enumerate(field.colour_layers)}
    sampler = model.sampler
    if isinstance(sampler, OccupancySampler) and sampler.swept:
        filled = above_limit(sampler.values, sampler.config.threshold).reshape(-1, 8).cpu()
        found["occupancy"] = (filled.to(torch.uint8) << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8)
    return found


def write_snapshot(path: Path, model: ExportModel, *, loader: bool = False) -> tuple[Path, ...]:
    """Write the snapshot, and with `loader` the loader beside it; returns the files.

    The table is in single precision where integers would move a pre-activation by `CLOSE` or more.
    """
    from safetensors.torch import save

    metadata = {"raymine": json.dumps(description_of(model))}
    tensors = tensors_of(model, short=True)
    if differences(model, snapshot_loader.Field(tensors, description_of(model))) >= CLOSE:
        tensors = tensors_of(model, short=False)
    data = save(tensors, metadata)
    with atomic_file(path, "write the snapshot") as file:
        file.write(data)
    if not loader:
        return (path,)
    beside = path.parent / "snapshot_loader.py"
    with replacing(beside, "write the loader") as temp:
        shutil.copyfile(snapshot_loader.__file__, temp)
    return path, beside


def precision_of(path: Path) -> str:
    """How the table of a snapshot is stored, in words."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        short = "scales" in file.keys()  # noqa: SIM118 (not a dict)
    return "as 16-bit integers" if short else "in single precision, since 16-bit integers would differ by more"


def check_snapshot(path: Path, model: ExportModel) -> float:
    """Read a snapshot by its loader; the largest difference of a pre-activation from the model."""
    return differences(model, snapshot_loader.load(str(path)))


def probes(model: ExportModel, count: int = _PROBES) -> tuple[Tensor, Tensor]:
    """Random points in the inner box of the scene, and random unit directions, [count, 3] each, on the CPU."""
    drawn = torch.Generator().manual_seed(0)
    low, high = torch.tensor(model.scene.bounds.low), torch.tensor(model.scene.bounds.high)
    points = low + (high - low) * torch.rand(count, 3, generator=drawn)
    return points, torch.nn.functional.normalize(torch.randn(count, 3, generator=drawn), dim=-1)


@torch.no_grad()
def differences(model: ExportModel, field: snapshot_loader.Field) -> float:
    """The largest absolute difference of a pre-activation between the model and a loaded snapshot."""
    points, directions = probes(model)
    ours, theirs = model.output(points, directions), field(points, directions)
    return max(float((a.cpu() - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
