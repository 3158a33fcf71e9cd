"""Pipelines: a file names scenes and stages; each stage runs once for the same inputs, settings and code.

Nothing here imports torch: stages are commands in processes of their own, which also keeps their crashes apart.
"""

from . import ray_train as ray_train
from .plan import Task as Task
from .plan import plan as plan
from .run import PipelineResult as PipelineResult
from .run import run_pipeline as run_pipeline
from .spec import Pipeline as Pipeline
from .spec import SceneSpec as SceneSpec
from .spec import load_pipeline as load_pipeline
from .stages import STAGES as STAGES
