"""Fuzz cases of the drop-ins for nerfacc 0.2 and 0.3."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raymine.compat import nerfacc_v02, nerfacc_v03
from raymine.compat.nerfacc_v03 import ContractionType, cuda
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_arguments import rand

V03 = "raymine.compat.nerfacc_v03"
V02 = "raymine.compat.nerfacc_v02"
ROI = torch.tensor([-0.7, -0.1, -0.3, 1.0, 1.1, 1.5])
"""No face of a cell lies at 0, where a box that is 1e30 times as large would have its rays."""


# ---- arguments


def rays_of(rng: torch.Generator, size: Size) -> Tensor:
    """Ray indices of samples, ascending; some rays have none."""
    return torch.randint(0, max(size.rays, 1), (size.samples,), generator=rng).sort().values


def info_of(rays: Tensor, n: int) -> Tensor:
    count = torch.bincount(rays, minlength=n)[:n] if n else rays.new_zeros(0)
    return torch.stack((count.cumsum(0) - count, count), -1).int()


def packed_args(rng: torch.Generator, size: Size) -> Args:
    return {"packed_info": info_of(rays_of(rng, size), size.rays)}


def index_args(rng: torch.Generator, size: Size) -> Args:
    return {"ray_indices": rays_of(rng, size), "n_rays": size.rays}


def opacity_args(rng: torch.Generator, size: Size) -> Args:
    return {"alphas": rand(rng, size.samples, 1, high=0.9)}


def interval_args(rng: torch.Generator, size: Size) -> Args:
    start = rand(rng, size.samples, 1, low=0.5).cumsum(0)
    return {"t_starts": start, "t_ends": start + rand(rng, size.samples, 1, low=0.01, high=0.3)}


def density_args(rng: torch.Generator, size: Size) -> Args:
    return {**interval_args(rng, size), "sigmas": rand(rng, size.samples, 1, high=3.0)}


def cut_args(rng: torch.Generator, size: Size) -> Args:
    return {"early_stop_eps": 1e-3, "alpha_thre": 0.1}


def field_args(rng: torch.Generator, size: Size) -> Args:
    return {"rgbs": rand(rng, size.samples, 3), "values": rand(rng, size.samples, 1), "render_bkgd": rand(rng, 3)}


def weight_args(rng: torch.Generator, size: Size, column: bool) -> Args:
    weights = rand(rng, size.samples, 1)
    return {"weights": weights if column else weights[:, 0], "values": rand(rng, size.samples, 2)}


def resampling_args(rng: torch.Generator, size: Size) -> Args:
    weights = rand(rng, size.samples, low=0.1)
    return {**packed_args(rng, size), **interval_args(rng, size), "weights": weights, "n_samples": 4}


def joined(*parts: Callable[[torch.Generator, Size], Args]) -> Callable[[torch.Generator, Size], Args]:
    return lambda rng, size: {name: value for part in parts for name, value in part(rng, size).items()}


def marching_args(rng: torch.Generator, size: Size) -> Args:
    directions = rand(rng, size.rays, 3, low=-1.0)
    return {
        "rays_o": rand(rng, size.rays, 3, low=-1.0, high=2.0),
        "rays_d": directions / directions.norm(dim=-1, keepdim=True),
        "roi": ROI.clone(),
        "binary": rand(rng, 3, 4, 5) > 0.5,
        "near_plane": 0.1,
        "far_plane": 2.0,
        "render_step_size": 0.05,
        "cone_angle": 0.01,
        "early_stop_eps": 1e-3,
        "alpha_thre": 1e-3,
    }


def bounded_args(rng: torch.Generator, size: Size) -> Args:
    args = marching_args(rng, size)
    kept = ("rays_o", "rays_d", "near_plane", "render_step_size")
    return {**{name: args[name] for name in kept}, "t_min": rand(rng, size.rays), "t_max": rand(rng, size.rays) + 1}


def point_args(rng: torch.Generator, size: Size) -> Args:
    return {"x": rand(rng, size.samples, 3, low=0.1, high=0.9), "roi": ROI.clone()}


def query_args(rng: torch.Generator, size: Size) -> Args:
    values = rand(rng, 3, 4, 5)
    return {"samples": rand(rng, size.samples, 3, low=-1), "grid_roi": ROI.clone(), "grid_values": values}


def grid_args(rng: torch.Generator, size: Size) -> Args:
    return {"roi_aabb": ROI.clone(), "resolution": 3}


def update_args(rng: torch.Generator, size: Size) -> Args:
    return {"step": 0, "occupancy": rand(rng, 27, 1), "occ_thre": 0.01, "ema_decay": 0.95, "warmup_steps": 256, "n": 16}


def masked_args(rng: torch.Generator, size: Size) -> Args:
    return {"data": rand(rng, size.rays, 4, 2), "mask": rand(rng, size.rays, 4) > 0.5}


def box_args(rng: torch.Generator, size: Size) -> Args:
    args = marching_args(rng, size)
    return {"rays_o": args["rays_o"], "rays_d": args["rays_d"], "aabb": ROI.clone()}


# ---- calls


class Marched:
    """The attributes that `ray_marching` reads of a grid."""

    def __init__(self, roi: Tensor, binary: Tensor, kind: ContractionType) -> None:
        self.roi_aabb, self.binary, self.contraction_type = roi, binary, kind


def run_marching(package: Any, kind: ContractionType, roi: Tensor, binary: Tensor, **rest: Any) -> Any:
    def density(t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor) -> Tensor:
        return t_starts * 0 + 2.0

    return package.ray_marching(grid=Marched(roi, binary, kind), sigma_fn=density, **rest)


def run_rendering(package: Any, alpha: bool, rgbs: Tensor, values: Tensor, **rest: Any) -> Any:
    return package.rendering(**rest, **{"rgb_alpha_fn" if alpha else "rgb_sigma_fn": lambda *_: (rgbs, values)})


def run_update(package: Any, occupancy: Tensor, **rest: Any) -> Any:
    grid = package.OccupancyGrid(ROI, 3)
    grid.every_n_step(occ_eval_fn=lambda x: occupancy, **rest)
    return grid.occs, grid.binary


def run_query(package: Any, samples: Tensor) -> Any:
    grid = package.OccupancyGrid(ROI, 3)
    grid._binary[1:] = True
    grid.occs[9:] = 0.5
    return grid.query_occ(samples)


def run_renamed(package: Any, **args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return package.unpack_to_ray_indices(**args)


def run_grid(package: Any, **args: Any) -> Any:
    return dict(package.OccupancyGrid(**args).state_dict())


def run_base(package: Any, rows: Tensor) -> Any:
    grid = package.Grid(rows)
    return str(grid.device)


FEW = ("resolution = 2147483648", "resolution = 4611686018427387904")
"""A grid of that many cells fits no memory; it is refused by `resolution` alone, which other trials show."""


def cases_of(package: Any, name: str) -> list[Case]:
    """The cases that 0.2 and 0.3 share, of the callables that the package defines itself."""

    def home(function: Any) -> tuple[str, ...]:
        return (f"{function.__module__}.{function.__qualname__}",)

    with_info = (
        packed_args if package is nerfacc_v02 else joined(packed_args, lambda rng, size: {"n_samples": size.samples})
    )
    grid = f"{name}.grid.OccupancyGrid"
    return [
        *(
            Case(home(package.ray_marching), marching_args, partial(run_marching, package, kind), label=kind.name)
            for kind in ContractionType
        ),
        Case(home(package.ray_marching), bounded_args, package.ray_marching, label="bounds of rays"),
        Case((grid,), grid_args, partial(run_grid, package), sizes=(USUAL,), without=FEW),
        Case((f"{grid}.every_n_step", grid) if package is nerfacc_v03 else (grid,), update_args,
             partial(run_update, package), sizes=(USUAL,), label="updates"),
        Case((f"{grid}.query_occ",), lambda rng, size: {"samples": rand(rng, size.samples, 3)},
             partial(run_query, package)),
        Case(home(package.pack_data), masked_args, package.pack_data, ("data",)),
        Case(home(package.unpack_info), with_info, package.unpack_info),
        Case(home(package.unpack_to_ray_indices), with_info, partial(run_renamed, package)),
    ]  # fmt: skip


def cases_03() -> list[Case]:
    volume, n3 = f"{V03}.vol_rendering", nerfacc_v03
    rays = (("indices", index_args), ("info", packed_args))
    return [
        *(
            case
            for label, given in rays
            for case in (
                Case((f"{volume}.render_weight_from_alpha",), joined(opacity_args, given), n3.render_weight_from_alpha,
                     ("alphas",), label=label),
                Case((f"{volume}.render_transmittance_from_alpha",), joined(opacity_args, given),
                     n3.render_transmittance_from_alpha, ("alphas",), label=label),
                Case((f"{volume}.render_weight_from_density",), joined(density_args, given),
                     n3.render_weight_from_density, ("sigmas",), label=label),
                Case((f"{volume}.render_transmittance_from_density",), joined(density_args, given),
                     n3.render_transmittance_from_density, ("sigmas",), label=label),
                Case((f"{volume}.render_visibility",), joined(opacity_args, given, cut_args), n3.render_visibility,
                     label=label),
            )
        ),
        *(
            Case((f"{volume}.rendering",), joined(interval_args, index_args, field_args),
                 partial(run_rendering, n3, alpha), ("rgbs", "values", "render_bkgd"), label=label)
            for alpha, label in ((False, "density"), (True, "opacity"))
        ),
        Case((f"{volume}.accumulate_along_rays",), joined(partial(weight_args, column=True), index_args),
             n3.accumulate_along_rays, ("weights", "values")),
        Case((f"{V03}.pack.pack_info",), index_args, n3.pack_info),
        Case((f"{V03}.pack.unpack_data",),
             joined(packed_args, lambda rng, size: {"data": rand(rng, size.samples, 2), "n_samples": size.samples}),
             n3.unpack_data, ("data",)),
        Case((f"{V03}.losses.distortion",),
             joined(packed_args, interval_args, lambda rng, size: {"weights": rand(rng, size.samples)}),
             n3.loss_distortion, ("weights",)),
        Case((f"{V03}.cdf.ray_resampling",), resampling_args, n3.ray_resampling),
        Case((f"{V03}.intersection.ray_aabb_intersect",), box_args, n3.ray_aabb_intersect),
        *(
            Case((f"{V03}.contraction.{function.__name__}",), point_args, partial(function, type=kind), label=kind.name)
            for function in (n3.contract, n3.contract_inv) for kind in ContractionType
        ),
        *(
            Case((f"{V03}.grid.query_grid",), query_args, partial(n3.query_grid, grid_type=kind), label=kind.name)
            for kind in ContractionType
        ),
        Case((f"{V03}.grid.Grid",), lambda rng, size: {"rows": rand(rng, 2)}, partial(run_base, n3), sizes=(USUAL,)),
        Case((f"{V03}.cuda.ContractionTypeGetter",), lambda rng, size: {"value": 1}, cuda.ContractionTypeGetter,
             sizes=(USUAL,)),
    ]  # fmt: skip


def cases_02() -> list[Case]:
    volume, n2 = f"{V02}.vol_rendering", nerfacc_v02
    return [
        Case((f"{volume}.render_weight_from_alpha",), joined(packed_args, opacity_args, cut_args),
             n2.render_weight_from_alpha, ("alphas",)),
        Case((f"{volume}.render_weight_from_density",), joined(packed_args, density_args, cut_args),
             n2.render_weight_from_density, ("sigmas",)),
        Case((f"{volume}.render_visibility",), joined(packed_args, opacity_args, cut_args), n2.render_visibility),
        *(
            Case((f"{volume}.rendering",), joined(packed_args, interval_args, field_args, cut_args),
                 partial(run_rendering, n2, alpha), ("rgbs", "values", "render_bkgd"), label=label)
            for alpha, label in ((False, "density"), (True, "opacity"))
        ),
        Case((f"{volume}.accumulate_along_rays",), joined(partial(weight_args, column=False), index_args),
             n2.accumulate_along_rays, ("weights", "values")),
    ]  # fmt: skip


CASES = [*cases_of(nerfacc_v03, V03), *cases_03(), *cases_of(nerfacc_v02, V02), *cases_02()]
