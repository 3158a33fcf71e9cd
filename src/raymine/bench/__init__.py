"""Benchmarks for users: they measure this machine and write JSON and an HTML page."""

from .mining import BenchObserver as BenchObserver
from .mining import MiningRequest as MiningRequest
from .mining import Outcome as Outcome
from .mining import SilentBenchObserver as SilentBenchObserver
from .mining import bench_mining as bench_mining
from .ops import OpRow as OpRow
from .ops import OpsRequest as OpsRequest
from .ops import bench_ops as bench_ops
from .policies import parse_policies as parse_policies
from .records import BenchRun as BenchRun
from .records import Document as Document
from .records import Look as Look
from .records import read_document as read_document
from .report.table import table_of as table_of
from .step import StepRequest as StepRequest
from .step import StepRow as StepRow
from .step import bench_step as bench_step
from .wall import WallRequest as WallRequest
from .wall import WallRow as WallRow
from .wall import bench_wall as bench_wall
