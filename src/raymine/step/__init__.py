"""One training step: `train_step` advances a `TrainState`, with rays and pixels from `TrainData`."""

from .config import TrainConfig as TrainConfig
from .data import TrainData as TrainData
from .state import TrainState as TrainState
from .state import create_state as create_state
from .state import twin_of as twin_of
from .train import train_step as train_step
