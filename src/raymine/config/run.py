"""`RunConfig`: everything on which the result of a run depends. It is written to `config.json`."""

from __future__ import annotations

from dataclasses import dataclass, field

from raymine.errors import ConfigError, option, require_finite
from raymine.files import JSON
from raymine.step import TrainConfig

from .codec import digest, from_json, to_json
from .migrate import SCHEMA, migrate_config

EARLIER = "earlier_digests"
"""Key of config.json: digests of its earlier contents. Older checkpoints store these digests."""

MOST_STEPS = 2**31 - 1
MOST_SECONDS = 1e8
"""The longest run: about three years."""


def require_steps(steps: int) -> None:
    """Raise `ConfigError` unless a run can have this many steps."""
    if not 1 <= steps <= MOST_STEPS:
        raise ConfigError(f"{option('steps')} must be between 1 and {MOST_STEPS}, got {steps}.")


def require_seconds(seconds: float, name: str = "max_seconds") -> None:
    """Raise `ConfigError`, which calls the option `name`, unless a run can take this many seconds."""
    if not 0 < seconds <= MOST_SECONDS:
        raise ConfigError(
            f"{option(name)} must be a positive number of seconds, at most {MOST_SECONDS:.0f}, got {seconds:g}."
        )


@dataclass(frozen=True)
class Every:
    """A period: every `steps` steps, every `seconds` of training, or both; 0 means never."""

    steps: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        require_finite(self)
        if self.steps < 0 or self.seconds < 0:
            raise ConfigError(f"A period must be 0 or more, got {self.steps} steps and {self.seconds} seconds.")

    def due(self, step: int, before: float, after: float) -> bool:
        """Whether it is due at `step`, after which the training clock has advanced from `before` to `after` seconds."""
        by_step = self.steps > 0 and step % self.steps == 0
        return by_step or (self.seconds > 0 and int(after / self.seconds) > int(before / self.seconds))


@dataclass(frozen=True)
class Schedule:
    """The periods of metrics rows (in steps), checkpoints and quick evaluations.

    evaluate_views: views of a quick evaluation. keep: number of latest checkpoints to keep.
    """

    metrics: int = 16
    checkpoint: Every = field(default_factory=lambda: Every(seconds=30.0))
    evaluate: Every = field(default_factory=Every)
    evaluate_views: int = 8
    keep: int = 2

    def __post_init__(self) -> None:
        if self.metrics < 1:
            raise ConfigError(f"schedule.metrics must be at least 1 step, got {self.metrics}.")
        if self.keep < 1:
            raise ConfigError(f"schedule.keep must be at least 1 checkpoint, got {self.keep}.")
        if self.evaluate_views < 0:
            raise ConfigError(f"schedule.evaluate_views must be 0 or more, got {self.evaluate_views}.")


@dataclass(frozen=True)
class InitFrom:
    """The checkpoint that a run starts from. run: an absolute folder. digest: SHA-256 of the checkpoint's JSON."""

    run: str
    step: int
    digest: str


@dataclass(frozen=True)
class RunConfig:
    """The complete config of a run. Exactly one of `steps` and `max_seconds` (training seconds) is set.

    scene: an absolute folder, or "builtin". device: "cpu" or "cuda", never "auto". hold_out: number of training views
    that are not trained on. leave_out: names of training images that are not trained on (`scenes/names.py`).
    init_from: the checkpoint of another run whose parameters this one starts from; None for none.
    """

    scene: str
    recipe: str
    train: TrainConfig
    downscale: int = 1
    seed: int = 0
    hold_out: int = 0
    leave_out: tuple[str, ...] = ()
    device: str = "cpu"
    steps: int | None = None
    max_seconds: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    init_from: InitFrom | None = field(default=None, metadata={"omit_none": True})

    def __post_init__(self) -> None:
        require_finite(self)
        if (self.steps is None) == (self.max_seconds is None):
            raise ConfigError(
                f"A run needs exactly one limit; steps is {self.steps} and max_seconds is {self.max_seconds}."
            )
        if self.downscale < 1:
            raise ConfigError(f"downscale must be at least 1, got {self.downscale}.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be between 0 and 2^63 - 1, got {self.seed}.")
        if self.device not in ("cpu", "cuda"):
            raise ConfigError(f"device must be cpu or cuda, got {self.device!r}.")
        if self.hold_out < 0:
            raise ConfigError(f"hold_out must be 0 or more views, got {self.hold_out}.")
        if self.steps is not None:
            require_steps(self.steps)
        if self.max_seconds is not None:
            require_seconds(self.max_seconds)

    def to_json(self) -> JSON:
        """The content of `config.json`."""
        return {"schema": SCHEMA, **to_json(self)}

    @staticmethod
    def from_json(data: JSON) -> RunConfig:
        """The config that this or an earlier raymine wrote; `ConfigError` names a value that does not fit."""
        if not isinstance(data, dict):
            raise ConfigError("the config must be an object.")
        return from_json(RunConfig, {key: value for key, value in migrate_config(data).items() if key != EARLIER})


def identity(data: JSON) -> JSON:
    """The part of a config's JSON that must be equal when a run is resumed.

    Limits may change. The schedule of evaluations and checkpoints does not influence the result. A scene may move: its
    digest, not its folder, tells whether it is the same.
    """
    free = ("schema", EARLIER, "scene", "steps", "max_seconds", "schedule")
    return {key: value for key, value in data.items() if key not in free}


def model_digest(data: JSON) -> str:
    """SHA-256 (hex) of the values that must be equal for a checkpoint to fit: recipe, seed and training config.

    The digest is of the stored JSON, not of the decoded config, so that a new field with a default does not change it.
    """
    return digest({key: data.get(key) for key in ("recipe", "seed", "train")})


def model_digests(data: JSON) -> tuple[str, ...]:
    """Every digest that a checkpoint of this config.json may have, the current one first."""
    earlier = data.get(EARLIER)
    return (model_digest(data), *(earlier if isinstance(earlier, list) else ()))


def keep_earlier_digests(data: JSON, stored: JSON) -> JSON:
    """`data`, which replaces `stored`, with the digests of `stored` added, so that its checkpoints still fit."""
    earlier = [found for found in model_digests(stored) if found != model_digest(data)]
    return {**data, EARLIER: earlier} if earlier else data
