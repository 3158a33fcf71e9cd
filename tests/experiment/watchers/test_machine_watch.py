"""Events about the machine, and warnings in plain words, one of each kind."""

from __future__ import annotations

from raymine.contracts import StepReport
from raymine.experiment import Event, LiveRun
from raymine.experiment.watchers.machine_watch import MachineWatch, WaitClock, warnings_of
from raymine.monitor import Sample


class FakeMonitor:
    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def take(self) -> Sample:
        return self.sample

    def close(self) -> None:
        return


def live(elapsed: float) -> LiveRun:
    return LiveRun(int(elapsed), elapsed, lambda: None, lambda *_, **__: None)  # type: ignore[arg-type,return-value]


def test_share_of_time_spent_waiting_is_reported_and_warned_about_once() -> None:
    waited, events = [0.0], list[Event]()
    watch = MachineWatch(
        FakeMonitor(Sample(cpu=0.5, memory=1 << 30, free=8 << 30)),  # type: ignore[arg-type]
        lambda: waited[0],
        events.append,
        on_cpu=True,
    )
    watch.on_burst(live(0.0))
    assert "waiting" not in events[0].data
    for _ in range(3):
        waited[0] += 4.2
        watch.on_burst(live(len(events) and 10.0 * round(waited[0] / 4.2)))
    shares = [event.data["waiting"] for event in events[1:] if event.kind == "monitor"]
    assert shares == [0.42, 0.42, 0.42]
    warnings = [event for event in events if event.level == "warning"]
    assert [event.kind for event in warnings] == ["data-wait"]
    assert warnings[0].message.startswith("42 % of step time waits for images: ")
    assert "memory 1.0 GiB" in events[0].message


def test_only_waits_within_steps_count() -> None:
    waited = [0.0]

    def advance(steps: int) -> list[StepReport]:
        waited[0] += 0.5
        return []

    clock = WaitClock(advance, lambda: waited[0])
    clock.advance(3)
    waited[0] += 100.0  # an evaluation reads its pixels
    clock.advance(1)
    assert clock.seconds == 1.0


def test_each_problem_of_the_machine_has_its_sentence() -> None:
    full = Sample(others=0.8, memory=99 << 30, free=1 << 30, gpu_memory=99, gpu_total=100)
    assert [kind for kind, _ in warnings_of(full, 0.9, on_cpu=True)] == [
        "data-wait",
        "busy-machine",
        "low-memory",
        "full-gpu",
    ]
    assert [kind for kind, _ in warnings_of(full, 0.1, on_cpu=False)] == ["low-memory", "full-gpu"]
    assert warnings_of(Sample(), None, on_cpu=True) == []


def test_waiting_for_the_file_names_the_budget_of_the_images() -> None:
    (read,) = warnings_of(Sample(), 0.4, on_cpu=True, from_file=True)
    (cold,) = warnings_of(Sample(), 0.4, on_cpu=True)
    assert "raise `bank_budget` if there is memory for it" in read[1]
    assert "bank_budget" not in cold[1]
