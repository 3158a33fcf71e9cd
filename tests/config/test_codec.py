"""Config codec: exact JSON round trips, errors with dotted names, differences, digests, and limits of a run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raymine.config import (
    Every,
    RunConfig,
    Schedule,
    differences,
    digest,
    from_json,
    identity,
    model_digest,
    replace_fields,
    to_json,
)
from raymine.errors import ConfigError
from raymine.step import TrainConfig


@dataclass(frozen=True)
class Grid:
    levels: int = 8
    scale: float = 1.5


@dataclass(frozen=True)
class Net:
    levels: int = 2


@dataclass(frozen=True)
class Model:
    name: str
    field: Grid | Net
    box: tuple[float, float, float] = (-1.0, 0.0, 1.0)
    widths: tuple[int, ...] = ()
    limit: int | float | None = None
    mode: Literal["a", "b", 3] = "a"
    flag: bool = False
    table: dict[str, float] = field(default_factory=dict)
    folder: Path = Path()
    pairs: tuple[tuple[int, int], ...] = ()
    inner: Grid | None = None

    def __post_init__(self) -> None:
        if self.name == "forbidden":
            raise ConfigError("name: must not be forbidden.")


def round_trip(value: Model) -> Model:
    return from_json(Model, json.loads(json.dumps(to_json(value), allow_nan=False)))


@settings(suppress_health_check=[HealthCheck.too_slow])  # generating values may be slow on a busy machine
@given(
    st.builds(
        Model,
        name=st.text().filter(lambda s: s != "forbidden"),
        field=st.one_of(st.builds(Grid, st.integers(), st.floats(allow_nan=False)), st.builds(Net, st.integers(-5, 5))),
        box=st.tuples(*[st.floats(allow_nan=False)] * 3),
        widths=st.lists(st.integers()).map(tuple),
        limit=st.one_of(st.none(), st.integers(), st.floats(allow_nan=False)),
        mode=st.sampled_from(["a", "b", 3]),
        flag=st.booleans(),
        table=st.dictionaries(st.text(), st.floats(allow_nan=False)),
        folder=st.just(Path("a/b")),
        pairs=st.lists(st.tuples(st.integers(), st.integers())).map(tuple),
        inner=st.one_of(st.none(), st.builds(Grid)),
    )
)
def test_json_round_trip_is_exact(value: Model) -> None:
    back = round_trip(value)
    assert back == value
    assert type(back.field) is type(value.field)
    assert repr(back) == repr(value)


def test_non_finite_floats_round_trip() -> None:
    back = round_trip(Model("x", Grid(scale=math.inf), box=(-math.inf, math.nan, 0.1)))
    assert back.field == Grid(scale=math.inf)
    assert back.box[0] == -math.inf
    assert math.isnan(back.box[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"levles": 3}, "levles: no such setting"),
        ({"name": 3}, "name: must be text, got 3"),
        ({"name": "forbidden"}, "name: must not be forbidden"),
        ({"flag": 1}, "flag: must be true or false, got 1"),
        ({"field": {"type": "Grid", "levels": 1.5}}, r"field.levels: must be a whole number, got 1.5"),
        ({"field": {"type": "Grid", "levels": True}}, "field.levels: must be a whole number, got True"),
        ({"field": {"type": "Tree"}}, "field.type: must be one of Grid, Net, got 'Tree'"),
        ({"field": {"levels": 3}}, "field.type: must be one of Grid, Net, got None"),
        ({"box": [1, 2]}, r"box: must have 3 values, got 2"),
        ({"box": [1, 2, "x"]}, r"box\[2\]: must be a number, got 'x'"),
        ({"widths": 3}, "widths: must be a list, got 3"),
        ({"mode": "c"}, "mode: must be one of 'a', 'b', 3, got 'c'"),
        ({"inner": 7}, "inner: must be an object, got 7"),
        ({"table": {"k": None}}, "table.k: must be a number, got None"),
    ],
)
def test_from_json_rejects_wrong_values_and_names_the_setting(change: dict[str, object], words: str) -> None:
    data = {**to_json(Model("x", Grid())), **change}
    with pytest.raises(ConfigError, match=words):
        from_json(Model, data)


def test_missing_keys_take_defaults_or_are_named() -> None:
    assert from_json(Grid, {"levels": 3}) == Grid(3, 1.5)
    with pytest.raises(ConfigError, match="name: missing"):
        from_json(Model, {"field": {"type": "Net"}})
    with pytest.raises(ConfigError, match="Did you mean levels"):
        from_json(Grid, {"level": 3})


def test_differences_lists_changed_added_and_removed_settings() -> None:
    old = {"train": {"field": {"levels": 8}, "lr": 0.1}, "seed": 0, "gone": 1}
    new = {"train": {"field": {"levels": 16}, "lr": 0.1}, "seed": 0, "new": None}
    assert differences(old, new) == [
        "train.field.levels: 8 in the run, 16 asked",
        "gone: 1 in the run, absent asked",
        "new: absent in the run, null asked",
    ]
    assert differences(old, old) == []
    # True == 1 in Python, but they are different settings.
    assert differences({"a": True}, {"a": 1}) == ["a: true in the run, 1 asked"]


def test_replace_fields_validates_values_and_suggests_names() -> None:
    model = Model("x", Grid())
    assert replace_fields(model, {"field.levels": 16, "name": "y"}) == Model("y", Grid(16))
    assert model == Model("x", Grid())
    with pytest.raises(ConfigError, match=r"no setting `field.level`") as caught:
        replace_fields(model, {"field.level": 16})
    assert "field.levels" in caught.value.hint
    with pytest.raises(ConfigError, match=r"no setting `name\.deeper`"):
        replace_fields(model, {"name.deeper": 1})
    with pytest.raises(ConfigError, match=r"field\.levels: must be a whole number"):
        replace_fields(model, {"field.levels": "16"})


def test_digest_ignores_key_order_only() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.0})
    assert len(digest({})) == 64


def test_run_config_round_trips_through_its_file_form() -> None:
    config = RunConfig("builtin", "ngp", TrainConfig(), steps=10, schedule=Schedule(evaluate=Every(steps=3)))
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    timed = RunConfig("builtin", "ngp", TrainConfig(), max_seconds=0.1)
    assert RunConfig.from_json(json.loads(json.dumps(timed.to_json()))) == timed
    assert identity(config.to_json()) == identity(timed.to_json())
    assert model_digest(config.to_json()) == model_digest(timed.to_json())
    other = RunConfig("builtin", "ngp", TrainConfig(), seed=1, steps=10)
    assert model_digest(config.to_json()) != model_digest(other.to_json())


def test_a_run_has_exactly_one_limit() -> None:
    for limits in ({}, {"steps": 3, "max_seconds": 1.0}):
        with pytest.raises(ConfigError, match="exactly one limit"):
            RunConfig("builtin", "ngp", TrainConfig(), **limits)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`steps` must be between 1 and 2147483647, got 0"):
        RunConfig("builtin", "ngp", TrainConfig(), steps=0)


def test_held_out_views_are_part_of_a_runs_identity() -> None:
    none, some = (RunConfig("builtin", "ngp", TrainConfig(), hold_out=n, steps=10) for n in (0, 4))
    found = differences(identity(none.to_json()), identity(some.to_json()))
    assert found == ["hold_out: 0 in the run, 4 asked"]
    with pytest.raises(ConfigError, match="hold_out must be 0 or more"):
        RunConfig("builtin", "ngp", TrainConfig(), hold_out=-1, steps=10)


def test_every_is_due_by_step_and_by_second() -> None:
    assert [s for s in range(1, 13) if Every(steps=5).due(s, 0.0, 0.0)] == [5, 10]
    assert Every(seconds=10.0).due(1, 9.9, 10.1)
    assert not Every(seconds=10.0).due(1, 10.0, 19.9)
    # One long step over several periods is due once.
    assert Every(seconds=10.0).due(1, 5.0, 55.0)
    assert not Every().due(100, 0.0, 1e9)
    with pytest.raises(ConfigError, match="0 or more"):
        Every(steps=-1)


def test_optional_parts_are_left_out_where_they_are_none() -> None:
    """A field with `omit_none` leaves files without it as they were, and can still be set by name."""
    plain = to_json(TrainConfig())
    assert not {"poses", "exposure"} & plain.keys()
    assert from_json(TrainConfig, plain) == TrainConfig()
    refined = replace_fields(TrainConfig(), {"poses": {}, "poses.lr": 0.5})
    assert refined.poses is not None
    assert refined.poses.lr == 0.5
    assert from_json(TrainConfig, to_json(refined)) == refined
    assert replace_fields(refined, {"poses": None}) == TrainConfig()
    with pytest.raises(ConfigError, match=r"There is no setting `poses\.lr`"):
        replace_fields(TrainConfig(), {"poses.lr": 0.5})
