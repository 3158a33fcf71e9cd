"""`raymine train`: train a radiance field on a scene."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from raymine.errors import ConfigError

from .. import output
from ..beside_imports import open_cuda
from ..imports import find_own_modules

if TYPE_CHECKING:
    from raymine.experiment import SilentObserver, TrainRequest
    from raymine.files import JSON
    from raymine.step.distributed.ranks import Ranks

_DAY = 86_400


@dataclass(frozen=True)
class Train:
    """Train a radiance field on a scene and save it in a run folder."""

    scene: tyro.conf.Positional[str]
    """Scene folder, or `builtin` for the scene that comes with raymine."""
    recipe: str = "auto"
    """What to train: a recipe of `raymine recipes`, or package.module:function for your own, which is then imported.
    `auto` takes the one that suits the scene."""
    mining: str | None = None
    """Samples to train on: `none` (all), `prune` (visible ones), `hard` (those with large gradients), or
    `hard:published`. The recipe's choice if not given."""
    pixels: str | None = None
    """How pixels are drawn: `uniform`, `error` (more where errors are large), `edges` (more at image edges) or
    `error+edges`. The recipe's choice if not given."""
    refine_poses: bool = False
    """Refine the poses of the training images along with the field, coarse to fine (docs/poses.md). For poses that are
    a little off; test views need `raymine eval --fit poses` then."""
    exposure: bool = False
    """Fit a brightness and colour correction for each training image. For photos with varying exposure."""
    init_from: Path | None = None
    """Start from the parameters of another run of the scene, such as one at half the size (--downscale 2)."""
    progressive: bool = False
    """Train on images of 1/4, then of 1/2 of their size first."""
    coarse_to_fine: bool = False
    """Open the levels of the field from coarse to fine over the first 30 % of the run. For blurred photos."""
    distortion: float | None = None
    """Weight of the distortion loss, against floaters, such as 0.01; 0 is off. The recipe's choice if not given."""
    free_space: float | None = None
    """Weight of a loss on density close to cameras, where few photos lead to fog; such as 0.1, and 0 is off. The
    recipe's choice if not given."""
    opacity_loss: float = 0.0
    """Weight of a loss that pushes the opacity of rays to 0 or 1, against fog; such as 0.01."""
    mask_loss: float = 0.0
    """Weight of a loss of opacity against the alpha of the images; such as 0.1. For images with transparent pixels."""
    depth_loss: float = 0.0
    """Weight of a loss against depth maps (`depth_file_path` in transforms.json); such as 0.01."""
    steps: int | None = None
    """Stop after this many steps. Without --steps and --max-seconds, the recipe's own number of steps."""
    max_seconds: float | None = None
    """Stop after this many seconds of training; loading, compiling and evaluating do not count. `ngp-large` may stop
    earlier, when further steps would overfit the training views; --steps has no such limit."""
    seed: int = 0
    """Seed of all random numbers. On a CPU, or with --deterministic, the same seed gives the same model."""
    deterministic: bool = False
    """Make runs on CUDA repeat bit for bit, which is a little slower. Runs on a CPU always do."""
    engine: Literal["auto", "fused", "captured", "plain"] = "auto"
    """How steps are taken on CUDA; auto is the fastest engine that can train the model (docs/distributed.md says
    which with several processes)."""
    amp: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    """Dtype of the networks' matrix products; auto is fp16 in the fused step on CUDA and in `dynamic` on CUDA, and fp32
    elsewhere."""
    recompute_samples: int = 0
    """Evaluate this many samples at a time and recompute their activations in the backward pass: less memory, slower
    steps. 0 is off."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to train on; auto is a CUDA GPU where there is one, else the CPU."""
    threads: int | None = None
    """Threads of a run on the CPU. All cores if not given; a resumed run keeps the number that it began with."""
    gpus: int | None = None
    """Train on this many GPUs of this machine, with one process for each (docs/distributed.md)."""
    processes: int | None = None
    """Train with this many processes on this machine, which share the rays of each step: on a CPU, or on few GPUs."""
    peer_timeout: float = 120.0
    """With several processes, seconds after which one that does not answer counts as lost, and the run ends."""
    max_restarts: int = 3
    """With --processes or --gpus, how often the run goes on from its last checkpoint after a process was killed."""
    gpu_memory: str | None = None
    """Memory of the GPU that the run may take, such as 8GB, for a GPU that is shared. All that is free if not given.
    Images that do not fit are on the GPU a part at a time (docs/memory.md)."""
    bank_budget: str | None = None
    """Main memory that the images may take, such as 2GB; half of what is free if not given. Images that do not fit are
    read from the cache on disk, which is slower. The result is the same."""
    out: Path | None = None
    """Run folder. The next free `runs/SCENE-RECIPE-N` if not given."""
    resume: bool = False
    """Continue the run in --out from its latest checkpoint; start it if there is none."""
    downscale: int = 1
    """Divide the size of every image by this."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    hold_out: int = 0
    """Do not train on this many training views, and use them for quick evaluations instead of the test views. Only they
    select a best checkpoint (`--checkpoint best` of other commands)."""
    leave_out: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Do not train on this image: its file name, with or without the suffix, or its path in the scene folder. Repeat it
    for more images."""
    track: tyro.conf.UseAppendAction[tuple[Literal["tensorboard", "trackio", "mlflow"], ...]] = ()
    """Send the metrics to this program too. Repeat it for more. They are always in metrics.jsonl of the run."""
    profile: bool = False
    """Write a PyTorch profiler trace of a few steps, and a table of where their time goes, to `profile` in the run."""
    view: bool = False
    """Show the run in a browser while it trains, for a small share of the time (docs/viewer.md). Needs the extra
    `view`."""
    host: str = "127.0.0.1"
    """Where --view listens. The default is for this machine alone; others need a token, which is printed."""
    port: int = 8080
    """Port of --view; 0 is any free one."""
    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"])] = False
    """Also say which backend runs each op, and why; `raymine doctor` lists them too."""
    json: bool = False
    """Print the final summary as one JSON document on stdout."""

    def request(self, overrides: Mapping[str, JSON] | None = None) -> TrainRequest:
        """What the options ask for. overrides: settings of the recipe's config by dotted name, which go over them."""
        from raymine.caches import parse_size
        from raymine.experiment import TrainRequest
        from raymine.recipes.policies import fitting_overrides, pixel_overrides, policy_overrides
        from raymine.recipes.techniques import Techniques

        find_own_modules(self.allow, self.recipe)
        return TrainRequest(
            scene=self.scene,
            recipe=self.recipe,
            out=self.out,
            resume=self.resume,
            steps=self.steps,
            max_seconds=self.max_seconds,
            seed=self.seed,
            device=self.device,
            downscale=self.downscale,
            hold_out=self.hold_out,
            leave_out=self.leave_out,
            threads=self.threads,
            gpu_memory=None if self.gpu_memory is None else parse_size(self.gpu_memory),
            bank_budget=None if self.bank_budget is None else parse_size(self.bank_budget),
            init_from=self.init_from,
            techniques=Techniques(
                progressive=self.progressive,
                coarse_to_fine=self.coarse_to_fine,
                opacity_loss=self.opacity_loss,
                mask_loss=self.mask_loss,
                depth_loss=self.depth_loss,
                distortion=self.distortion,
                free_space=self.free_space,
            ),
            overrides={
                **({} if self.mining is None else policy_overrides(self.mining)),
                **({"deterministic": True} if self.deterministic else {}),
                **({} if self.engine == "auto" else {"engine": self.engine}),
                **({} if self.amp == "auto" else {"amp": self.amp}),
                **({"recompute_samples": self.recompute_samples} if self.recompute_samples else {}),
                **({} if self.pixels is None else pixel_overrides(self.pixels)),
                **fitting_overrides(poses=self.refine_poses, exposure=self.exposure),
                **(overrides or {}),
            },
            command=("raymine", *sys.argv[1:]),
            allow=self.allow,
            track=self.track,
            profile=self.profile,
        )

    def check(self) -> None:
        """`ConfigError` for options that no scene has a use for."""
        self.request()

    def execute(self) -> int:
        """Exit code 0 if the run reached its limit, 130 or 143 if a signal stopped it."""
        from .launcher import launch
        from .processes import launched, quieten, say_ignored, train_as_rank

        wanted = self.processes if self.gpus is None else self.gpus
        if self.gpus is not None and self.processes is not None:
            raise ConfigError(
                "--gpus and --processes were both given; each says how many processes to start.",
                hint="Drop one of them.",
            )
        if not 1 <= self.peer_timeout <= _DAY:
            raise ConfigError(f"--peer-timeout must be 1 second to a day ({_DAY} s), got {self.peer_timeout:g}.")
        if self.max_restarts < 0:
            raise ConfigError(f"--max-restarts must be 0 or more, got {self.max_restarts}.")
        if launched():
            quieten()
        elif wanted is None:
            open_cuda(self.device)
        request = self.request()
        if launched():
            say_ignored(wanted)
            return train_as_rank(request, self.peer_timeout, self._train)
        if wanted is not None:
            return launch(wanted, self.gpus is not None, self.max_restarts)
        return self._train(request)

    def _train(self, request: TrainRequest, ranks: Ranks | None = None) -> int:
        """Train in this process; ranks: of which it is rank 0. None: on its own."""
        from raymine.config import packages_to_allow
        from raymine.rundir import RunDir
        from raymine.step.distributed.ranks import SOLO

        from .narrate import narrated_train

        with self._viewer() as viewer:
            result = narrated_train(request, verbose=self.verbose, also=viewer, ranks=ranks or SOLO)
        if self.json:
            output.emit_json(asdict(result))
        if result.status == "stopped":
            limit = "" if self.out is not None else f" --out {result.run}"
            output.say(
                f"Stopped at step {result.step}; the run is saved. To continue, repeat the command with --resume{limit}"
            )
        else:
            needed = packages_to_allow(RunDir.open(result.run).read_config_json())
            target = " ".join([str(result.run), *(f"--allow {package}" for package in needed)])
            fit = {(True, False): " --fit poses", (False, True): " --fit exposure", (True, True): " --fit both"}
            how = fit.get((self.refine_poses, self.exposure), "")
            output.say(f"Next: raymine eval {target}{how}   or   raymine render {target}")
        return result.exit_code

    @contextlib.contextmanager
    def _viewer(self) -> Iterator[SilentObserver | None]:
        """The observer that shows the run in a browser, if it is wanted."""
        if not self.view:
            yield None
            return
        from raymine.listening import Place
        from raymine.viewer import LiveViewer

        place = Place(self.host, self.port)
        viewer = LiveViewer(place)
        if place.warning:
            output.warn(place.warning)
        output.say(f"Viewer: {viewer.url}  (while training; afterwards: raymine view RUN)")
        try:
            yield viewer
        finally:
            viewer.close()
