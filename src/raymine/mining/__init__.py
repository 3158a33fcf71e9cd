"""Sample mining: which of the marched samples a step trains on."""

from . import diagnose as diagnose
from . import draw as draw
from .config import PUBLISHED as PUBLISHED
from .config import HardConfig as HardConfig
from .config import MiningConfig as MiningConfig
from .gradients import output_gradients as output_gradients
from .miner import Mined as Mined
from .miner import Miner as Miner
from .miner import pull_back as pull_back
