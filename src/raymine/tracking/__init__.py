"""Metrics to other programs beside the run folder: TensorBoard, trackio and MLflow, each on a thread of its own."""

from .backends import BACKENDS as BACKENDS
from .backends import make_sink as make_sink
from .backends import require_backends as require_backends
from .sink import RunDescription as RunDescription
from .sink import Sink as Sink
from .sink import SinkThread as SinkThread
