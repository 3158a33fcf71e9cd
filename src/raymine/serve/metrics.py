"""Counters of the service, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from collections import Counter

_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Metrics:
    """Counts answers by path and code, and the seconds of rendered requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0
        self._rendered = 0
        self._pixels = 0

    def answered(self, path: str, code: int) -> None:
        with self._lock:
            self._answers[path, code] += 1

    def rendered(self, seconds: float, pixels: int) -> None:
        with self._lock:
            self._rendered += 1
            self._seconds += seconds
            self._pixels += pixels
            for bound in _BUCKETS:
                self._buckets[bound] += seconds <= bound

    def text(self, waiting: int, busy: bool) -> str:
        """waiting, busy: the queue at this moment."""
        with self._lock:
            lines = ["# TYPE raymine_answers_total counter"]
            lines += [
                f'raymine_answers_total{{path="{path}",code="{code}"}} {count}'
                for (path, code), count in sorted(self._answers.items())
            ]
            lines.append("# TYPE raymine_render_seconds histogram")
            lines += [f'raymine_render_seconds_bucket{{le="{bound:g}"}} {self._buckets[bound]}' for bound in _BUCKETS]
            lines += [
                f'raymine_render_seconds_bucket{{le="+Inf"}} {self._rendered}',
                f"raymine_render_seconds_sum {self._seconds:.6f}",
                f"raymine_render_seconds_count {self._rendered}",
                "# TYPE raymine_pixels_total counter",
                f"raymine_pixels_total {self._pixels}",
                "# TYPE raymine_queue_waiting gauge",
                f"raymine_queue_waiting {waiting}",
                "# TYPE raymine_rendering gauge",
                f"raymine_rendering {int(busy)}",
            ]
            return "\n".join(lines) + "\n"
