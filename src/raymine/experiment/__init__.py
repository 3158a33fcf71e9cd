"""Training runs: from a request to a run folder that can be resumed, evaluated and reproduced."""

from .finished.load import LoadedRun as LoadedRun
from .finished.load import load_run as load_run
from .finished.scores import choose_frames as choose_frames
from .finished.scores import frames_by_name as frames_by_name
from .finished.scores import score_frames as score_frames
from .horizon import Replay as Replay
from .observers import EvalInfo as EvalInfo
from .observers import Event as Event
from .observers import HardViews as HardViews
from .observers import LiveRun as LiveRun
from .observers import Observer as Observer
from .observers import Observers as Observers
from .observers import SilentObserver as SilentObserver
from .observers import StartInfo as StartInfo
from .observers import StepInfo as StepInfo
from .prepare import LoadedData as LoadedData
from .prepare import evaluation_frames as evaluation_frames
from .prepare import open_data as open_data
from .prepare import resolve_device as resolve_device
from .request import RunResult as RunResult
from .request import TrainRequest as TrainRequest
from .runner import train as train
from .stopwatch import Stopwatch as Stopwatch
from .watchers.progress import ProgressObserver as ProgressObserver
from .watchers.progress import train_with_progress as train_with_progress
