"""The size of a selection's tensors, decided without waiting for the device.

On a CPU the number of chosen samples is known. On CUDA it is known only later, so the tensors get room for 1.5 times
the number that was chosen `LAG` steps ago, and unused entries have weight 0. That number is copied to the host
asynchronously. A copy that is `LAG` steps old is complete in practice, and the result never depends on timing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks

LAG = 8
_SLACK, _SPARE = 1.5, 256


class Capacity:
    """shares [LAG], on the host: chosen / marched samples of the last steps, as a ring buffer. turn []: steps so far.

    high: the largest share that can be chosen. overflow []: chosen samples that had no room.
    """

    def __init__(self, high: float, device: torch.device) -> None:
        if not 0 < high <= 1:
            raise ConfigError(f"`high` must be above 0 and at most 1, got {high}.")
        self.high = high
        self.cuda = device.type == "cuda"
        self.shares = torch.full((LAG,), high, pin_memory=self.cuda)
        self.turn = torch.zeros((), dtype=torch.int64)
        self.overflow = torch.zeros((), dtype=torch.int64, device=device)
        self._events: list[torch.cuda.Event | None] = [None] * LAG

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, by name."""
        if self.cuda:
            torch.cuda.synchronize()
        return {"shares": self.shares, "turn": self.turn, "overflow": self.overflow}

    def bound(self, wanted: Tensor, total: int) -> int:
        """The size of tensors for `wanted` [] of `total` samples."""
        return self._room(total) if self.cuda else int(wanted)

    def compact(self, taken: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """taken [B] bool -> index [c] ascending, and [c] float: 1 for a chosen sample, 0 for an unused entry."""
        checks.mask("taken", taken, taken.shape[0] if taken.ndim else 1, self.overflow.device)
        checks.whole(len(taken), 2**53, total=total)
        if not self.cuda:
            index = taken.nonzero()[:, 0]
            return index, torch.ones(len(index), device=taken.device)
        index = torch.nonzero_static(taken, size=self._room(total), fill_value=-1)[:, 0]
        live = index >= 0
        count = taken.sum()
        self.overflow += (count - len(index)).clamp_min(0)
        self._remember(count / total)
        return index.clamp_min(0), live.float()

    def trim(self, index: Tensor, weight: Tensor, live: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """On a CPU, drop unused entries and sort by index, so that neighbours in memory stay neighbours."""
        checks.columns(weight=weight)
        checks.integers("index", index, weight.device, len(weight))
        checks.mask("live", live, len(weight), weight.device)
        if self.cuda:
            self._remember(live.sum() / total)
            return torch.where(live, index, 0), weight
        index, order = index[live].sort()
        return index, weight[live][order]

    def _room(self, total: int) -> int:
        """Entries for the share of `LAG` steps ago, with slack."""
        slot = int(self.turn) % LAG
        event = self._events[slot]
        if event is not None:
            event.synchronize()
        share = min(self.high, _SLACK * float(self.shares[slot]))
        return min(total, int(share * total) + _SPARE)

    def _remember(self, share: Tensor) -> None:
        slot = int(self.turn) % LAG
        self.shares[slot].copy_(share, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._events[slot] = event
        self.turn += 1
