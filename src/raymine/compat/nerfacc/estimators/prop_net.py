"""`nerfacc.estimators.prop_net`: sampling with proposal networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from raymine.compat.nerfacc.data_specs import RayIntervals
from raymine.compat.nerfacc.estimators.base import AbstractEstimator
from raymine.compat.nerfacc.pdf import importance_sampling, searchsorted
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit.proposal import (
    check_densities,
    density_cdf,
    interlevel_loss,
    transmittance_cdf,
    update_if_finite,
)  # fmt: skip
from raymine.toolkit.proposal import get_proposal_requires_grad_fn as get_proposal_requires_grad_fn


class PropNetEstimator(AbstractEstimator):
    """Samples coarse to fine with the user's proposal densities; the optional optimizer and scheduler train them.

    prop_cache: what `compute_loss` needs: (intervals, cdfs) of each proposal, then (final intervals, None).
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None = None, scheduler: Any = None) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.prop_cache: list[tuple[RayIntervals, Tensor | None]] = []

    @torch.no_grad()
    def sampling(
        self,
        prop_sigma_fns: list[Callable[[Tensor, Tensor], Tensor]],
        prop_samples: list[int],
        num_samples: int,
        n_rays: int,
        near_plane: float,
        far_plane: float,
        sampling_type: Literal["uniform", "lindisp"] = "lindisp",
        stratified: bool = False,
        requires_grad: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Final t_starts, t_ends (n_rays, num_samples), without a graph.

        prop_sigma_fns: t_starts, t_ends (n_rays, n) -> densities (n_rays, n) after activation. prop_samples: intervals
        of each proposal. requires_grad: compute the densities with a graph and keep them for the loss; this discards
        what an earlier call has kept.
        """
        if len(prop_sigma_fns) != len(prop_samples):
            raise ConfigError(
                f"`prop_samples` must have one number per proposal, {len(prop_sigma_fns)}, got {len(prop_samples)}."
            )
        checks.whole(n_rays=n_rays)
        checks.numbers(near_plane=near_plane, far_plane=far_plane)
        cdfs = torch.linspace(0, 1, 2, device=self.device).expand(n_rays, 2)
        intervals = RayIntervals(vals=cdfs)
        kept: list[tuple[RayIntervals, Tensor | None]] = []
        for sigma_fn, samples in zip(prop_sigma_fns, prop_samples, strict=True):
            intervals, _ = importance_sampling(intervals, cdfs, samples, stratified)
            t = _transform_stot(sampling_type, intervals.vals, near_plane, far_plane)
            with torch.set_grad_enabled(requires_grad):
                sigmas = sigma_fn(t[:, :-1], t[:, 1:])
                check_densities(sigmas, t[:, 1:])
                cdfs = density_cdf(sigmas, t[:, :-1], t[:, 1:])
            kept.append((intervals, cdfs))
        intervals, _ = importance_sampling(intervals, cdfs, num_samples, stratified)
        if requires_grad:
            self.prop_cache = [*kept, (intervals, None)]
        t = _transform_stot(sampling_type, intervals.vals, near_plane, far_plane)
        return t[:, :-1], t[:, 1:]

    @torch.enable_grad()
    def compute_loss(self, trans: Tensor, loss_scaler: float = 1.0) -> Tensor:
        """[]: the loss of the proposals. Differentiable in the proposal densities.

        trans: transmittance (n_rays, num_samples) before the final samples; it gets no gradient. Empties the cache. The
        loss is 0 if the cache is empty.
        """
        loss = torch.zeros((), device=self.device)
        if not self.prop_cache:
            return loss
        intervals, _ = self.prop_cache.pop()
        cdfs = transmittance_cdf(trans.detach())
        while self.prop_cache:
            prop_intervals, prop_cdfs = self.prop_cache.pop()
            assert prop_cdfs is not None
            each = interlevel_loss(intervals.vals, cdfs, prop_intervals.vals, prop_cdfs)
            loss = loss + each.sum() / max(each.numel(), 1)
        return loss * loss_scaler

    @torch.enable_grad()
    def update_every_n_steps(  # type: ignore[override]
        self, trans: Tensor, requires_grad: bool = False, loss_scaler: float = 1.0
    ) -> float:
        """Train the proposals on the cache and advance the scheduler. If requires_grad=False, only the scheduler.

        Returns the loss as a number, or 0 if nothing was trained. If the loss is not finite, no parameter changes.
        """
        loss = 0.0
        if requires_grad:
            if not self.prop_cache or self.optimizer is None:
                raise ConfigError(
                    "an update needs an optimizer and a call of `sampling` with requires_grad=True before it; got "
                    f"{len(self.prop_cache)} cached levels and optimizer {self.optimizer}."
                )
            loss = update_if_finite(self.optimizer, self.compute_loss(trans, loss_scaler))
        if self.scheduler is not None:
            self.scheduler.step()
        return loss


def _pdf_loss(
    segments_query: RayIntervals, cdfs_query: Tensor, segments_key: RayIntervals, cdfs_key: Tensor, eps: float = 1e-7
) -> Tensor:
    """Per interval of the query, the part of its weight that the key does not bound (`interlevel_loss`).

    Batched intervals (n_rays, n + 1) give (n_rays, n). Flat ones need `is_left` and `is_right` and give one value per
    interval. Differentiable in both CDFs.
    """
    if segments_query.vals.ndim > 1:
        return interlevel_loss(segments_query.vals, cdfs_query, segments_key.vals, cdfs_key, eps=eps)
    opens, closes = segments_query.is_left, segments_query.is_right
    if opens is None or closes is None:
        raise ConfigError("flat `segments_query` need `is_left` and `is_right` to say which edges bound an interval.")
    left, right = searchsorted(segments_key, segments_query)
    weights = cdfs_query[closes] - cdfs_query[opens]
    outer = cdfs_key[right[closes]] - cdfs_key[left[opens]]
    return (weights - outer).clamp_min(0).square() / (weights + eps)


def _lossfun_outer(t: Tensor, w: Tensor, t_env: Tensor, w_env: Tensor) -> Tensor:
    """As `_pdf_loss`, from edges t (..., n + 1), t_env (..., m + 1) and weights w (..., n), w_env (..., m)."""
    cdfs, bound = (torch.cat((torch.zeros_like(part[..., :1]), part.cumsum(-1)), -1) for part in (w, w_env))
    return interlevel_loss(t, cdfs, t_env, bound, eps=torch.finfo(t.dtype).eps)


def _transform_stot(
    kind: Literal["uniform", "lindisp"], s: Tensor, near: float | Tensor, far: float | Tensor
) -> Tensor:
    """s in 0..1 -> distances in the shape of s. near and far are numbers, or tensors that broadcast with s."""
    if kind == "uniform":
        return s * far + (1 - s) * near
    if kind == "lindisp":
        if not isinstance(near, Tensor) and near == 0:
            raise ConfigError("`near_plane` must be positive with lindisp, got 0. Raise it, or use uniform.")
        return 1 / (s / far + (1 - s) / near)
    raise ConfigError(f"`sampling_type` must be uniform or lindisp, got {kind!r}.")
