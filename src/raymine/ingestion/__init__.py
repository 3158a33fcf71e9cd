"""Photos or a video to a scene: structure from motion with COLMAP. Needs the extra `ingest`.

source    which files there are, and which are left out        photos, video    upright pictures in a staging folder
stages    what is finished, so that the same command continues     process, worker  COLMAP in a process of its own
verdict   why a photo has no pose, and what helps              page             ingest.html
run       the order of all of it

Names are imported when they are first used: each step of COLMAP is a process that needs none of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import Features as Features
    from .config import IngestConfig as IngestConfig
    from .config import Lens as Lens
    from .config import Mapper as Mapper
    from .config import Matching as Matching
    from .run import Ingested as Ingested
    from .run import ingest as ingest
else:
    _CONFIG = ("Features", "IngestConfig", "Lens", "Mapper", "Matching")

    def __getattr__(name: str) -> object:
        import importlib

        if name in _CONFIG:
            return getattr(importlib.import_module("raymine.ingestion.config"), name)
        if name in ("Ingested", "ingest"):
            return getattr(importlib.import_module("raymine.ingestion.run"), name)
        raise AttributeError(f"module 'raymine.ingestion' has no attribute {name!r}")
