"""Run folders: everything that describes a run is in one folder, which one process at a time may write."""

from .folder import RunDir as RunDir
from .folder import check_target as check_target
from .index import RunSummary as RunSummary
from .index import list_runs as list_runs
from .index import summarise_run as summarise_run
from .lock import RunLock as RunLock
from .manifest import Attempt as Attempt
from .manifest import Environment as Environment
from .manifest import Manifest as Manifest
from .manifest import describe_environment as describe_environment
