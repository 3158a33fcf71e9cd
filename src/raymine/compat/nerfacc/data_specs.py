"""`nerfacc.data_specs`: values along rays, batched or flat, and which ray each belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

_NO_CPP = "there is no C++ behind raymine.compat.nerfacc; take the tensors from the fields instead"


@dataclass
class RaySamples:
    """Distances along rays.

    vals: [R, n] batched or [B] flat. The other fields are for flat `vals`. packed_info: [R, 2], first sample of each
    ray and its number of samples. ray_indices: [B], the ray of each sample. is_valid: [B] bool, False for unused
    entries of an over-allocated array.
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

    vals: [R, n] batched, where neighbouring edges bound an interval; or [E] flat. The other fields are for flat `vals`.
    is_left, is_right: [E] bool, whether an edge starts and whether it ends an interval; it may do both.
    packed_info: [R, 2], first edge of each ray and its number of edges. ray_indices: [E], the ray of each edge.
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
