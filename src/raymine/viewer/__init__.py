"""The web viewer: live rendering of a trained run, or of one that is training. Needs the extra `view` (viser)."""

from .live import LiveViewer as LiveViewer
from .server import ViewServer as ViewServer
from .watch import watch_run as watch_run
