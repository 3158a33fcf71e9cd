"""Fuzz cases of the estimators of `raymine.compat.nerfacc`: occupancy grids and proposals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.compat import nerfacc
from raymine.compat.nerfacc.estimators.base import AbstractEstimator
from raymine.compat.nerfacc.estimators.prop_net import PropNetEstimator
from support import fuzz_occupancy as grids
from support import fuzz_proposal as proposals
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_arguments import rand
from support.fuzz_expect import careful, moderate, plain, renamed, require

ESTIMATORS = "raymine.compat.nerfacc.estimators"

# ---- occupancy grids


def estimator() -> nerfacc.OccGridEstimator:
    torch.manual_seed(7)
    made = nerfacc.OccGridEstimator(grids.BOX, grids.SIDES, grids.LEVELS)
    made.occs.copy_(torch.rand(grids.LEVELS * grids.CELLS) - 0.2)
    made.binaries = (made.occs > 0.3).view(grids.LEVELS, *grids.SIDES)
    return made


def sampling_args(rng: torch.Generator, size: Size) -> Args:
    names = {"origins": "rays_o", "directions": "rays_d", "near": "near_plane", "far": "far_plane"}
    names |= {"step": "render_step_size", "early_stop": "early_stop_eps", "alpha_threshold": "alpha_thre"}
    return {names.get(name, name): value for name, value in grids.ray_args(rng, size).items()}


def run_sampling(**args: Any) -> Any:
    return estimator().sampling(**args, sigma_fn=grids.density_at)


@careful
def sampled(args: Args, result: Any) -> str:
    names = {"rays_o": "origins", "rays_d": "directions", "near_plane": "near", "far_plane": "far"}
    ray_id, t_start, t_end = result
    count = torch.bincount(ray_id, minlength=len(args["rays_o"]))
    found = SimpleNamespace(t_start=t_start, t_end=t_end, ray_id=ray_id, first=count.cumsum(0) - count, count=count)
    return grids.placed({names.get(name, name): value for name, value in args.items()}, found)


def run_grid_update(**args: Any) -> Any:
    made = estimator()
    before = made.occs.clone()
    made.update_every_n_steps(args.pop("step"), lambda x: 0.5 + 0.25 * x[:, :1], **args)
    return before, made.occs, made.binaries


def run_mark(**args: Any) -> Tensor:
    made = nerfacc.OccGridEstimator(grids.BOX, grids.SIDES, grids.LEVELS)
    made.mark_invisible_cells(**args)
    return made.occs >= 0


def run_new(box: Tensor, resolution: int, levels: int) -> Any:
    made = nerfacc.OccGridEstimator(box, resolution, levels)
    return made.aabbs[0], ~made.binaries, made.occs


# ---- proposals


def levels_args(rng: torch.Generator, size: Size) -> Args:
    """The proposal returns `density`, so that wrong results of a callback are tried too."""
    return {
        "density": rand(rng, size.rays, 6, high=3),
        "samples": 6,
        "final": 4,
        "n_rays": size.rays,
        "near_plane": 0.5,
        "far_plane": 4.0,
    }


def run_levels(kind: Any) -> Any:
    def run(density: Tensor, samples: int, final: int, **args: Any) -> Any:
        return PropNetEstimator().sampling([lambda *_: density], [samples], final, **args, sampling_type=kind)

    return run


@careful
def in_span(args: Args, result: Any) -> str:
    """Intervals follow one another from near to far."""
    start, end = (plain(part) for part in result)
    near, far = args["near_plane"], args["far_plane"]
    require(args["density"].shape == (args["n_rays"], args["samples"]), "density")
    if start.shape != (args["n_rays"], args["final"]) or end.shape != start.shape:
        return f"shape {list(start.shape)}"
    if not moderate(args) or not 0 < near < far < 1e6:
        return ""
    sound = (start <= end + 1e-3).all() and (start >= near - 1e-3).all() and (end <= far + 1e-3).all()
    return "" if sound and (np.abs(start[:, 1:] - end[:, :-1]) < 1e-3).all() else "intervals leave near .. far"


def a_proposal() -> tuple[PropNetEstimator, torch.nn.Parameter]:
    rng = torch.Generator().manual_seed(3)
    weight = torch.nn.Parameter(rand(rng, USUAL.rays, 6, high=3))
    made = PropNetEstimator(torch.optim.SGD([weight], lr=0.1))
    made.sampling([lambda *_: weight], [6], 4, USUAL.rays, 0.2, 3.0, requires_grad=True)
    return made, weight


def run_loss(transmittance: Tensor, loss_scaler: float) -> Any:
    made, _ = a_proposal()
    (own, cdfs), (final, _) = made.prop_cache
    return made.compute_loss(transmittance, loss_scaler), own.vals, cdfs.detach(), final.vals


def run_prop_update(transmittance: Tensor, loss_scaler: float) -> Any:
    made, weight = a_proposal()
    before = weight.detach().clone()
    loss = made.update_every_n_steps(transmittance, True, loss_scaler)
    return loss, float((weight.detach() - before).abs().max())


# ---- the base class


def run_abstract(value: int) -> Any:
    def refuses(call: Any) -> bool:
        try:
            return call(value) is not None
        except NotImplementedError:
            return True

    made = AbstractEstimator()
    return [call.__name__ for call in (made.sampling, made.update_every_n_steps) if refuses(call)]


CASES = [
    Case((f"{ESTIMATORS}.occ_grid.OccGridEstimator.sampling",), sampling_args, run_sampling, holds=sampled),
    Case(
        (f"{ESTIMATORS}.occ_grid.OccGridEstimator",),
        lambda *_: {"box": grids.BOX.clone(), "resolution": 3, "levels": 2},
        run_new,
        holds=grids.empty_grid,
        sizes=(USUAL,),
    ),
    Case(
        (f"{ESTIMATORS}.occ_grid.OccGridEstimator.update_every_n_steps",),
        lambda *_: {"step": 32, "occ_thre": 0.05, "ema_decay": 0.9, "warmup_steps": 64, "n": 16},
        run_grid_update,
        holds=renamed(grids.grid_updated, occ_thre="threshold"),
        sizes=(USUAL,),
    ),
    Case(
        (f"{ESTIMATORS}.occ_grid.OccGridEstimator.mark_invisible_cells",),
        grids.camera_args,
        run_mark,
        holds=grids.seen_by,
        sizes=(USUAL,),
    ),
    *(
        Case(
            (
                f"{ESTIMATORS}.prop_net.PropNetEstimator",
                f"{ESTIMATORS}.prop_net.PropNetEstimator.sampling",
            ),
            levels_args,
            run_levels(kind),
            holds=in_span,
            label=kind,
        )
        for kind in ("uniform", "lindisp")
    ),
    Case(
        (f"{ESTIMATORS}.prop_net.PropNetEstimator.compute_loss",),
        proposals.loss_args,
        run_loss,
        holds=proposals.loss_of_levels,
        sizes=(USUAL,),
    ),
    Case(
        (f"{ESTIMATORS}.prop_net.PropNetEstimator.update_every_n_steps",),
        proposals.loss_args,
        run_prop_update,
        holds=proposals.trained,
        sizes=(USUAL,),
    ),
    Case(
        tuple(f"{ESTIMATORS}.base.AbstractEstimator{name}" for name in ("", ".sampling", ".update_every_n_steps")),
        lambda *_: {"value": 1},
        run_abstract,
        holds=lambda _, refused: (
            "" if refused == ["sampling", "update_every_n_steps"] else f"only {refused} is abstract"
        ),
        sizes=(USUAL,),
    ),
]
