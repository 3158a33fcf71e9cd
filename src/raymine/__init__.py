"""raymine: train a neural radiance field from posed photos, on any machine where pip can install it.

    run = raymine.train("builtin", seconds=30)      run = raymine.load("runs/builtin-ngp-1")

`import raymine` loads nothing else. `train`, `load`, `look_at` and the other names below, and the submodules, are
imported when they are first used.
"""

from typing import TYPE_CHECKING

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from .api import Run as Run
    from .api import ingest as ingest
    from .api import load as load
    from .api import train as train
    from .cameras import look_at as look_at
    from .contracts import Camera as Camera
else:
    _MODULE_OF = {
        "Run": "api",
        "ingest": "api",
        "load": "api",
        "train": "api",
        "look_at": "cameras",
        "Camera": "contracts",
    }

    def __getattr__(name: str) -> object:
        import importlib
        import importlib.util

        if name in _MODULE_OF:
            # It must come before torch, whose thread pool reads the environment when it is loaded.
            importlib.import_module("raymine.machine").shorten_spinning()
            return getattr(importlib.import_module(f"raymine.{_MODULE_OF[name]}"), name)
        if not name.startswith("_") and importlib.util.find_spec(f"raymine.{name}") is not None:
            return importlib.import_module(f"raymine.{name}")
        raise AttributeError(f"module 'raymine' has no attribute {name!r}")

    def __dir__() -> list[str]:
        import pkgutil

        modules = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
        return sorted({"__version__", *_MODULE_OF, *modules})
