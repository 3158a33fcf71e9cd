"""Photos or a video to a scene: structure from motion with COLMAP. Needs the extra `ingest`.

source    which files there are, and which are left out        photos, video    upright pictures in a staging folder
stages    what is finished, so that the same command continues     process, worker  COLMAP in a process of its own
verdict   why a photo has no pose, and what helps              page             ingest.html
run       the order of all of it
"""

from .config import Features as Features
from .config import IngestConfig as IngestConfig
from .config import Lens as Lens
from .config import Mapper as Mapper
from .config import Matching as Matching
from .run import Ingested as Ingested
from .run import ingest as ingest
