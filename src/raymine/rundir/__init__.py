"""Run folders: everything that describes a run is in one folder, which one process at a time may write.

Names are imported when they are first used, because those of `index`, which lists runs, do not need torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .folder import RunDir as RunDir
    from .folder import check_target as check_target
    from .index import list_runs as list_runs
    from .index import register as register
    from .lock import RunLock as RunLock
    from .manifest import Attempt as Attempt
    from .manifest import Environment as Environment
    from .manifest import Manifest as Manifest
    from .manifest import describe_environment as describe_environment
    from .summary import RunSummary as RunSummary
    from .summary import summarise_run as summarise_run
else:
    _MODULE_OF = {
        **dict.fromkeys(("RunDir", "check_target"), "folder"),
        **dict.fromkeys(("list_runs", "register"), "index"),
        "RunLock": "lock",
        **dict.fromkeys(("Attempt", "Environment", "Manifest", "describe_environment"), "manifest"),
        **dict.fromkeys(("RunSummary", "summarise_run"), "summary"),
    }

    def __getattr__(name: str) -> object:
        import importlib

        if name in _MODULE_OF:
            return getattr(importlib.import_module(f"raymine.rundir.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module 'raymine.rundir' has no attribute {name!r}")
