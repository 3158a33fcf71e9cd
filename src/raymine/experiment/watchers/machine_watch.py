"""The observer that records what a run takes of the machine, and warns in plain words when something holds it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from raymine.contracts import StepReport
from raymine.errors import option
from raymine.files import JSON
from raymine.monitor import Monitor, Sample
from raymine.quantities import size

from ..observers import Event, LiveRun, SilentObserver

WAITING = 0.25
"""Share of training time spent on reading pixels from which on a warning is worth it."""
OTHERS = 0.5
"""Share of all cores that other processes take."""
_LOW_MEMORY = 0.05
_FULL_GPU = 0.97
_LEAST_SECONDS = 3.0
"""A share over less training than this tells nothing."""


class WaitClock:
    """Counts the seconds that steps wait for pixels. Reading pixels between steps, to evaluate, does not count.

    waited: seconds waited so far, by anybody. advance: takes steps, as `engines.Engine.advance` does.
    """

    def __init__(self, advance: Callable[[int], Sequence[StepReport]], waited: Callable[[], float]) -> None:
        self._advance, self._waited = advance, waited
        self.seconds = 0.0

    def advance(self, steps: int) -> Sequence[StepReport]:
        """See `advance` of the class."""
        before = self._waited()
        reports = self._advance(steps)
        self.seconds += self._waited() - before
        return reports


class MachineWatch(SilentObserver):
    """Writes an event `monitor` for each sample of the machine. tell: receives it, and warnings, one of each kind.

    waited: seconds that steps have waited for pixels so far. on_cpu: whether the run trains on the CPU. from_file:
    whether pixels are read from the file, because the images do not fit into the memory that they may take.
    """

    def __init__(
        self,
        monitor: Monitor,
        waited: Callable[[], float],
        tell: Callable[[Event], None],
        *,
        on_cpu: bool,
        from_file: bool = False,
    ) -> None:
        self._monitor, self._waited, self._tell = monitor, waited, tell
        self._on_cpu, self._from_file = on_cpu, from_file
        self._since: tuple[float, float] | None = None
        self._warned: set[str] = set()

    def on_burst(self, live: LiveRun) -> None:
        if self._since is None:
            self._since = (live.elapsed, self._waited())
        sample = self._monitor.take()
        if sample is None:
            return
        seconds, waited = live.elapsed - self._since[0], self._waited() - self._since[1]
        share = None
        if seconds >= _LEAST_SECONDS:
            share = min(1.0, waited / seconds)
            self._since = (live.elapsed, self._waited())
        known = {name: value for name, value in asdict(sample).items() if value is not None}
        data: dict[str, JSON] = {**known, **({} if share is None else {"waiting": round(share, 4)})}
        self._tell(Event("monitor", _words(sample, share), live.step, data=data))
        for kind, message in warnings_of(sample, share, on_cpu=self._on_cpu, from_file=self._from_file):
            if kind not in self._warned:
                self._warned.add(kind)
                self._tell(Event(kind, message, live.step, "warning"))

    def close(self) -> None:
        self._monitor.close()


def warnings_of(
    sample: Sample, waiting: float | None, *, on_cpu: bool, from_file: bool = False
) -> list[tuple[str, str]]:
    """What holds a run up, as (kind, sentence). waiting: share of training time spent on reading pixels.

    on_cpu, from_file: as in `MachineWatch`.
    """
    found = []
    if waiting is not None and waiting >= WAITING:
        found.append(
            (
                "data-wait",
                f"{waiting * 100:.0f} % of step time waits for images: "
                + (f"raise {option('bank_budget')} if there is memory for it, " if from_file else "")
                + "put the cache (RAYMINE_CACHE) on a faster disk, "
                + ("" if on_cpu else f"raise {option('gpu_memory')} if that is set, ")
                + f"or train on smaller images with {option('downscale', 2)}",
            )
        )
    if on_cpu and sample.others is not None and sample.others >= OTHERS:
        told = (
            f"other programs take {sample.others * 100:.0f} % of the processor, so training is slower than it could be"
        )
        found.append(("busy-machine", told))
    if (
        sample.memory is not None
        and sample.free is not None
        and sample.free < _LOW_MEMORY * (sample.memory + sample.free)
    ):
        told = f"only {size(sample.free)} of memory are free: close other programs, or use {option('downscale', 2)}"
        found.append(("low-memory", told))
    if sample.gpu_memory is not None and sample.gpu_total and sample.gpu_memory > _FULL_GPU * sample.gpu_total:
        told = f"the memory of the GPU is full ({size(sample.gpu_memory)} of {size(sample.gpu_total)})"
        found.append(("full-gpu", told))
    return found


def _words(sample: Sample, waiting: float | None) -> str:
    told = []
    if sample.cpu is not None:
        told.append(f"CPU {sample.cpu * 100:.0f} %")
    if sample.gpu is not None:
        told.append(f"GPU {sample.gpu * 100:.0f} %")
    if sample.memory is not None:
        told.append(f"memory {size(sample.memory)}")
    if sample.gpu_memory is not None:
        told.append(f"GPU memory {size(sample.gpu_memory)}")
    if waiting is not None:
        told.append(f"waiting for images {waiting * 100:.1f} %")
    return ", ".join(told)
