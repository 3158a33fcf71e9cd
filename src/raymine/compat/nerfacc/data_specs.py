"""`nerfacc.data_specs`: values along rays, batched or flat, with what says which ray they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

_NO_CPP = "there is no C++ behind raymine.compat.nerfacc; take the tensors from the fields instead"


@dataclass
class RaySamples:
    """Distances along rays.

    vals: [R, n] batched or [B] flat. packed_info: [R, 2], where each ray begins and how many samples it has, for flat
    `vals`. ray_indices: [B] the ray of each sample, for flat `vals`. is_valid: [B] bool, which places are used where
    room was left for more.
    """

    vals: Tensor
    packed_info: Tensor | None = None
    ray_indices: Tensor | None = None
    is_valid: Tensor | None = None

    def _to_cpp(self) -> NoReturn:
        raise NotImplementedError(f"RaySamples._to_cpp: {_NO_CPP}.")

    @classmethod
    def _from_cpp(cls, spec: Any) -> RaySamples:
        """From any object with `vals`, `chunk_starts`, `chunk_cnts`, `ray_indices` and `is_valid`."""
        return cls(spec.vals, _info(spec), spec.ray_indices, spec.is_valid)

    @property
    def device(self) -> torch.device:
        return self.vals.device


@dataclass
class RayIntervals:
    """Edges of intervals along rays.

    vals: [R, n] batched, where neighbouring edges bound an interval, or [E] flat, where is_left and is_right [E] bool
    say which edges begin and which end an interval: an edge may do both. packed_info: [R, 2], where each ray begins
    and how many edges it has. ray_indices: [E] the ray of each edge.
    """

    vals: Tensor
    packed_info: Tensor | None = None
    ray_indices: Tensor | None = None
    is_left: Tensor | None = None
    is_right: Tensor | None = None

    def _to_cpp(self) -> NoReturn:
        raise NotImplementedError(f"RayIntervals._to_cpp: {_NO_CPP}.")

    @classmethod
    def _from_cpp(cls, spec: Any) -> RayIntervals:
        """From any object with `vals`, `chunk_starts`, `chunk_cnts`, `ray_indices`, `is_left` and `is_right`."""
        return cls(spec.vals, _info(spec), spec.ray_indices, spec.is_left, spec.is_right)

    @property
    def device(self) -> torch.device:
        return self.vals.device


def _info(spec: Any) -> Tensor | None:
    if spec.chunk_starts is None or spec.chunk_cnts is None:
        return None
    return torch.stack((spec.chunk_starts, spec.chunk_cnts), -1)
