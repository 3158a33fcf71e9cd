"""Migrate the config.json and the checkpoint names of runs from earlier versions to the current schema.

The schema is a number that increases whenever stored names or meanings change. config.json and every checkpoint store
it under "schema"; without that key the schema is 1. A new field with a default needs no new schema. Migrations work on
raw JSON and on names, never on classes, because the old classes no longer exist.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from raymine.errors import ConfigError
from raymine.files import JSON

SCHEMA = 4
"""The current schema, which is written."""

T = TypeVar("T")
Migration: TypeAlias = "Callable[[dict[str, JSON]], dict[str, JSON]]"


def schema_of(data: Mapping[str, JSON], what: str, known: int = SCHEMA) -> int:
    """The schema of a stored document; `ConfigError` if a later version wrote it. what: its name in errors."""
    schema = data.get("schema", 1)
    if not isinstance(schema, int) or schema < 1:
        raise ConfigError(f"{what} has no such schema as {schema!r}.")
    if schema > known:
        raise ConfigError(
            f"{what} was made by a newer raymine: it has schema {schema}, and this one knows schemas up to {known}.",
            hint="Update raymine.",
        )
    return schema


def migrate_config(data: JSON, to: int = SCHEMA) -> JSON:
    """A config.json of any schema, migrated to schema `to`, without the key "schema". `data` is not changed."""
    schema = schema_of(data, "the config", to)
    data = {key: value for key, value in copy.deepcopy(data).items() if key != "schema"}
    try:
        for migration in _CONFIGS[schema - 1 : to - 1]:
            data = migration(data)
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"the config is damaged: as one of schema {schema} it makes no sense ({error}).") from error
    return data


def migrate_tensors(tensors: Mapping[str, T], schema: int, to: int = SCHEMA) -> dict[str, T]:
    """The tensors of a checkpoint of `schema`, by their names in schema `to`."""
    out = dict(tensors)
    for rename in _TENSORS[schema - 1 : to - 1]:
        out = {rename(name): value for name, value in out.items()}
    return out


def migrate_scalars(scalars: Mapping[str, JSON], schema: int, to: int = SCHEMA) -> dict[str, JSON]:
    """The scalars of a checkpoint of `schema`, with the names of schema `to`, and with those that it adds."""
    out = dict(scalars)
    for migration in _SCALARS[schema - 1 : to - 1]:
        out = migration(out)
    return out


def _configs_1_to_2(data: JSON) -> JSON:
    """Field and sampler store their class, which may be of another package; the loss is a list; some names change."""
    train = data.get("train")
    if not isinstance(train, dict):
        return data
    hard = train.get("mining", {}).get("hard", {})
    if hard.pop("winsor", None) is not None:
        raise ConfigError(
            "train.mining.hard.winsor: this option is gone.", hint="Use the raymine that made the run, or train again."
        )
    for old, new in (("occupancy", "sampler"), ("checkpoint", "recompute_samples"), ("enough", "max_useful_steps")):
        if old in train:
            train[new] = train.pop(old)
    if "random_background" in train:
        train["background"] = "random" if train.pop("random_background") else "scene"
    for part, path in (
        ("field", "raymine.fields.hash_field:HashFieldConfig"),
        ("sampler", "raymine.samplers.occupancy:OccupancyConfig"),
    ):
        if part in train:
            train[part] = {"type": path, **train[part]}
    if "loss" in train:
        train["loss"] = [{"type": "raymine.losses.colour:ColourLoss", **train["loss"]}]
    return data


def _tensors_1_to_2(name: str) -> str:
    """Names begin with the part that owns the tensor; moments contain it."""
    for moment in ("adam.first.", "adam.second."):
        if name.startswith(moment):
            return f"{moment}field.{name.removeprefix(moment)}"
    return "sampler.values" if name == "occupancy.values" else name


def _scalars_1_to_2(scalars: dict[str, JSON]) -> dict[str, JSON]:
    return {"sampler.swept" if name == "occupancy.swept" else name: value for name, value in scalars.items()}


def _configs_2_to_3(data: JSON) -> JSON:
    """Poses were refined to the end of a run; now that is one of the values of `until`."""
    train = data.get("train")
    if isinstance(train, dict) and train.get("poses") is not None:
        train["poses"].setdefault("until", 1.0)
    return data


def _scalars_2_to_3(scalars: dict[str, JSON]) -> dict[str, JSON]:
    """Refinement had not ended. Where no poses are refined, nobody reads that number."""
    return {"poses.ended": 0, **scalars}


def _configs_3_to_4(data: JSON) -> JSON:
    """The rate of poses followed that of the run alone; now that is one of the values of `final`."""
    train = data.get("train")
    if isinstance(train, dict) and train.get("poses") is not None:
        train["poses"].setdefault("final", 1.0)
    return data


_CONFIGS: tuple[Callable[[JSON], JSON], ...] = (_configs_1_to_2, _configs_2_to_3, _configs_3_to_4)
_TENSORS: tuple[Callable[[str], str], ...] = (_tensors_1_to_2, lambda name: name, lambda name: name)
_SCALARS: tuple[Migration, ...] = (_scalars_1_to_2, _scalars_2_to_3, lambda scalars: scalars)
