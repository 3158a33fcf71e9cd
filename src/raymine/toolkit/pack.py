"""Packed rays: rays with different numbers of samples in one flat array (defined in `kernels/packed.py`)."""

from __future__ import annotations

from raymine.kernels.packed import Pack as Pack
from raymine.kernels.packed import Samples as Samples
from raymine.kernels.packed import pack_counts as pack_counts
from raymine.kernels.packed import pack_ids as pack_ids
