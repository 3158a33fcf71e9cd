"""Read and check a sweep file, and list its points. docs/sweeps.md describes the format."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from raymine.errors import ConfigError, SceneError, did_you_mean
from raymine.files import JSON, expanded

from .prune import Prune, read_prune
from .reading import number, options_of, path_in, read_toml, require_known, text

METRICS = ("held_out_psnr", "best_held_out_psnr")
SEARCHES = ("grid", "random", "optuna")
MOST_TRIALS = 10_000
_TOP = ("scene", "out", "search", "trials", "draw_seed", "seeds", "metric", "jobs", "memory", "prune", "train", "space")
_OURS = ("out", "resume", "json")
_ALONE = ("processes", "gpus", "peer_timeout", "max_restarts")
"""Options of a run of several processes. A trial is one process."""
_WATCHED = ("view", "host", "port")
"""Options for someone who watches a run. Nobody watches a trial."""
_FIXED = ("hold_out", "leave_out", "downscale", "allow", "track", "profile", "init_from")
"""Options that a space may not vary: trials would be scored on other views or pixels, or not be trials at all."""

Point = dict[str, JSON]
"""Values of the settings of a space, by name."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, whole ones if both are; log: uniform in the logarithm."""

    low: float
    high: float
    log: bool = False

    def draw(self, generator: random.Random) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if isinstance(self.low, int) and isinstance(self.high, int):
            if not self.log:
                return generator.randint(self.low, self.high)
            return min(max(round(math.exp(generator.uniform(low, high))), self.low), self.high)
        value = generator.uniform(low, high)
        return min(max(math.exp(value) if self.log else value, self.low), self.high)


Space = Mapping[str, list[JSON] | Range]
"""What each setting may be, by its name."""


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file.

    scene: a folder, or "builtin". train: options of `raymine train` that all trials share. points: settings to try; ()
    with the search `optuna`, which chooses `trials` points of the space while the sweep runs. options: which settings
    are options of `raymine train`; the others are settings of the recipe's config. seeds: every point is trained once
    with each. description: what the file asks for, which tells this sweep from others. memory: GiB of GPU memory that a
    trial needs; None if the file does not say. prune: when trials are stopped early. draw_seed: of random points.
    """

    file: Path
    out: Path
    scene: str
    train: Mapping[str, JSON]
    points: tuple[Point, ...]
    options: frozenset[str]
    seeds: tuple[int, ...]
    metric: str
    jobs: int | None
    description: JSON
    memory: float | None = None
    prune: Prune | None = None
    search: str = "grid"
    space: Space = field(default_factory=dict)
    trials: int = 0
    draw_seed: int = 0


def load_sweep(path: Path, known: Collection[str]) -> Sweep:
    """Read a sweep file. `ConfigError` for what is wrong in it, `SceneError` for a scene that does not exist.

    known: the options of `raymine train`.
    """
    data = read_toml(path, "sweep file")
    require_known(path, "the file", data, _TOP)
    here = path.absolute().parent
    given = text(path, "scene", data)
    scene = given if given == "builtin" else str((here / expanded(given)).resolve())
    if scene != "builtin" and not Path(scene).exists():
        raise SceneError(f"{path}: the scene does not exist: {scene}.", hint="`scene` is relative to the file.")
    train = options_of(path, "train", data.get("train", {}))
    _require_train(path, train, known)
    if "init_from" in train:
        train["init_from"] = str(path_in(path, "init_from", train["init_from"], here))
    space = dict(_space(path, data.get("space", {})))
    if not space:
        raise ConfigError(
            f"{path}: the space is empty.", hint='Add [space] with settings, such as mining = ["none", "hard"].'
        )
    options = frozenset(name for name in space if name in known)
    for name in space:
        _require_of_trials(path, f"[space] may not vary `{name}`", name)
        if name in _FIXED:
            raise ConfigError(f"{path}: [space] may not vary `{name}`.", hint="Give it in [train].")
    search = _choice(path, data, "search", "grid", SEARCHES)
    trials, draw_seed = _draws(path, search, data)
    points: tuple[Point, ...] = ()
    if search != "optuna":
        points = _grid(path, space) if search == "grid" else _random(space, trials, draw_seed)
    prune = read_prune(path, data.get("prune"))
    seeds = data.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or any(type(seed) is not int or seed < 0 for seed in seeds):
        raise ConfigError(f"{path}: `seeds` must be a list of whole numbers of at least 0, got {seeds!r:.80}.")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"{path}: `seeds` names a seed twice: {seeds!r:.80}.")
    metric = _choice(path, data, "metric", METRICS[0], METRICS)
    # What Optuna is told of a point is by the metric. Its points come one after the other, so their number may be
    # raised later; those of the other searches are all known.
    asked: dict[str, JSON] = {"points": list(points)}
    if search == "optuna":
        ranges = {name: asdict(values) if isinstance(values, Range) else values for name, values in space.items()}
        asked = {"search": search, "space": ranges, "draw_seed": draw_seed, "metric": metric}
    return Sweep(
        file=path,
        out=path_in(path, "out", data.get("out", f"results/{path.stem}"), here),
        scene=scene,
        train=train,
        points=points,
        options=options,
        seeds=tuple(seeds),
        metric=metric,
        jobs=None if "jobs" not in data else int(number(path, data, "jobs", 1, 1, 256)),
        description={
            "scene": scene,
            "train": dict(train),
            **asked,
            "seeds": seeds,
            **({} if prune is None else {"prune": asdict(prune)}),
        },
        memory=None if "memory" not in data else number(path, data, "memory", 1.0, 0.01, 10_000.0),
        prune=prune,
        search=search,
        space=space,
        trials=trials,
        draw_seed=draw_seed,
    )


def probes(sweep: Sweep) -> list[Point]:
    """Points that show whether a trial of this sweep can start: every one that is known, or every value once."""
    if sweep.points:
        return list(sweep.points)
    values = {
        name: [each.low, each.high] if isinstance(each, Range) else list(each) for name, each in sweep.space.items()
    }
    most = max(len(each) for each in values.values())
    return [{name: each[min(i, len(each) - 1)] for name, each in values.items()} for i in range(most)]


def size_of(space: Space) -> float:
    """How many points a space has; infinite where a setting may be any number of a range."""
    sizes: list[float] = []
    for values in space.values():
        if not isinstance(values, Range):
            sizes.append(len(values))
        elif isinstance(values.low, int) and isinstance(values.high, int):
            sizes.append(values.high - values.low + 1)
        else:
            return math.inf
    return math.prod(sizes)


def _require_train(path: Path, train: Mapping[str, JSON], known: Collection[str]) -> None:
    for name in train:
        _require_of_trials(path, f"[train] may not set `{name}`", name)
        if name not in known:
            raise ConfigError(
                f"{path}: `raymine train` has no option `{name}`.{did_you_mean(name, known)}",
                hint="The help of `raymine train` lists its options. Settings of a config belong in [space].",
            )
    held_out = train.get("hold_out", 0)
    if type(held_out) is not int or held_out < 1:
        raise ConfigError(
            f"{path}: [train] needs `hold_out` of at least 1, got {held_out!r}: views held out from training choose "
            "the best trial, test views do not.",
            hint="Add hold_out = 4 to [train], for instance.",
        )


def _require_of_trials(path: Path, refusal: str, name: str) -> None:
    """Raise `ConfigError`, which begins with `refusal`, for an option that a sweep sets itself or that no trial has."""
    if name in (*_OURS, "seed"):
        hint = "List `seeds`, above the tables." if name == "seed" else "Remove it."
        raise ConfigError(f"{path}: {refusal}; the sweep does.", hint=hint)
    if name in _ALONE:
        hint = "Remove it. `jobs` is how many trials run at the same time; there is one for each GPU without it."
        raise ConfigError(f"{path}: {refusal}; a trial is one process.", hint=hint)
    if name in _WATCHED:
        hint = "Remove it. `raymine view RUN` shows the run of a trial."
        raise ConfigError(f"{path}: {refusal}; trials run unwatched.", hint=hint)


def _space(path: Path, value: Any, prefix: str = "") -> Iterator[tuple[str, list[JSON] | Range]]:
    """Settings and what they may be. TOML makes tables of a dotted name without quotes."""
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: [space] must be a table of settings.")
    for key, item in value.items():
        name = f"{prefix}{key}" if prefix or "." in key else key.replace("-", "_")
        if isinstance(item, dict) and not {"low", "high"} & set(item):
            yield from _space(path, item, f"{name}.")
        elif isinstance(item, dict):
            yield name, _range(path, name, item)
        elif isinstance(item, list) and item:
            if any(item.count(each) > 1 for each in item):
                raise ConfigError(f"{path}: `{name}` in [space] has a value twice: {item!r:.80}.")
            yield name, item
        else:
            raise ConfigError(
                f"{path}: `{name}` in [space] must be a list of values or {{low = ..., high = ...}}, got {item!r:.80}."
            )


def _range(path: Path, name: str, item: Mapping[str, Any]) -> Range:
    require_known(path, f"`{name}`", item, ("low", "high", "log"))
    low, high, log = item.get("low", math.nan), item.get("high", math.nan), item.get("log", False)
    numbers = all(type(each) in (int, float) and math.isfinite(each) for each in (low, high))
    if not numbers or not low < high or type(log) is not bool or (log and low <= 0):
        raise ConfigError(f"{path}: `{name}` needs numbers low < high (above 0 if log = true), got {dict(item)!r:.80}.")
    return Range(low, high, log)


def _draws(path: Path, search: str, data: Mapping[str, Any]) -> tuple[int, int]:
    """How many points are wanted, and the seed of their choice; zeros for a grid."""
    if search == "grid":
        for key in ("trials", "draw_seed"):
            if key in data:
                hint = 'Use search = "random" or "optuna", or remove it.'
                raise ConfigError(f"{path}: `{key}` is not for a grid, which tries every combination.", hint=hint)
        return 0, 0
    if "trials" not in data:
        raise ConfigError(f'{path}: search = "{search}" needs `trials`, the number of points to try.')
    trials = int(number(path, data, "trials", 1, 1, MOST_TRIALS))
    return trials, int(number(path, data, "draw_seed", 0, 0, 2**63 - 1))


def _grid(path: Path, space: Space) -> tuple[Point, ...]:
    lists = []
    for name, values in space.items():
        if isinstance(values, Range):
            raise ConfigError(
                f"{path}: `{name}` is a range, and a grid needs lists.",
                hint='List its values, or use search = "random" or "optuna".',
            )
        lists.append(values)
    if size_of(space) > MOST_TRIALS:
        raise ConfigError(f"{path}: the grid has more than {MOST_TRIALS} points.", hint='Use search = "random".')
    return tuple(dict(zip(space, values, strict=True)) for values in itertools.product(*lists))


def _random(space: Space, wanted: int, seed: int) -> tuple[Point, ...]:
    generator = random.Random(seed)
    points: list[Point] = []
    seen: set[str] = set()
    for _ in range(100 * wanted):
        point = {
            name: values.draw(generator) if isinstance(values, Range) else generator.choice(values)
            for name, values in space.items()
        }
        # A space of lists may have fewer points than were asked for; none is tried twice.
        if repr(point) not in seen:
            seen.add(repr(point))
            points.append(point)
        if len(points) == wanted:
            break
    return tuple(points)


def _choice(path: Path, data: Mapping[str, Any], key: str, default: str, known: tuple[str, ...]) -> str:
    value = data.get(key, default)
    if value not in known:
        hint = "Test views choose nothing; evaluate the best trial with raymine eval." if key == "metric" else ""
        raise ConfigError(f"{path}: `{key}` must be {' or '.join(known)}, got {value!r:.80}.", hint=hint)
    return str(value)
