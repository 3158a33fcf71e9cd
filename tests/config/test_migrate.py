"""Migration of configs and checkpoints from earlier schemas to the current one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from raymine.config import RunConfig, identity, keep_earlier_digests, model_digest, model_digests
from raymine.config.migrate import SCHEMA, migrate_config, migrate_scalars, migrate_tensors, schema_of
from raymine.errors import ConfigError

OLD: dict[str, Any] = json.loads((Path(__file__).parent / "schema_1.json").read_text())
OLD_DIGEST = "7d98c1ca4ee4f0e8eb57c5f70c36c537e9ac066b688ed83d56fb849d4d677022"
"""The digest stored in the checkpoints of that run. It must never change."""


def old(**train: object) -> dict[str, Any]:
    """The config of schema 1 with some settings of `train` replaced."""
    data = copy.deepcopy(OLD)
    data["train"].update(train)
    return data


def test_schema_1_to_2_renames_settings_adds_types_and_keeps_the_rest() -> None:
    before = old(enough=40_000, checkpoint=4096, random_background=False)
    kept = copy.deepcopy(before)
    after = migrate_config(before, to=2)
    assert before == kept, "the stored data must not change: its digest is still needed"
    assert {key: value for key, value in after.items() if key != "train"} == {
        key: value for key, value in before.items() if key != "train"
    }
    train, was = after["train"], before["train"]
    assert train["field"] == {"type": "raymine.fields.hash_field:HashFieldConfig", **was["field"]}
    assert train["sampler"] == {"type": "raymine.samplers.occupancy:OccupancyConfig", **was["occupancy"]}
    assert train["loss"] == [{"type": "raymine.losses.colour:ColourLoss", "kind": "l2", "delta": 0.1}]
    assert (train["max_useful_steps"], train["recompute_samples"], train["background"]) == (40_000, 4096, "scene")
    assert migrate_config(OLD, to=2)["train"]["background"] == "random"
    assert "winsor" not in train["mining"]["hard"]
    assert train["mining"]["hard"]["high"] == 0.5
    same = ("batch", "optimiser", "pixels", "deterministic", "amp")
    assert {key: train[key] for key in same} == {key: was[key] for key in same}
    assert train.keys() == {
        *same, "field", "sampler", "loss", "mining", "background", "recompute_samples", "max_useful_steps"
    }  # fmt: skip


def test_removed_option_raises_instead_of_being_dropped() -> None:
    winsor = copy.deepcopy(OLD)
    winsor["train"]["mining"]["hard"]["winsor"] = 8.0
    with pytest.raises(ConfigError, match=r"train\.mining\.hard\.winsor: this option is gone"):
        migrate_config(winsor, to=2)


def test_incomplete_config_is_migrated_and_damaged_config_raises() -> None:
    """Settings with defaults were added over time, so an old config may lack them."""
    assert migrate_config({"recipe": "ngp", "train": {"amp": "fp16"}}, to=2) == {
        "recipe": "ngp",
        "train": {"amp": "fp16"},
    }
    assert migrate_config({"a": 1}, to=2) == {"a": 1}
    with pytest.raises(ConfigError, match="the config is damaged"):
        migrate_config({"train": {"mining": 3}}, to=2)
    with pytest.raises(ConfigError, match="the config is damaged"):
        migrate_config({"train": {"field": 3}}, to=2)
    with pytest.raises(ConfigError, match="the config must be an object"):
        RunConfig.from_json([1])


@pytest.mark.parametrize("schema", [3, 99])
def test_newer_or_invalid_schema_raises(schema: int) -> None:
    with pytest.raises(ConfigError, match=rf"made by a newer raymine: it has schema {schema}, .* up to 2"):
        migrate_config({"schema": schema}, to=2)
    for wrong in ("2", 0, None, 1.5):
        with pytest.raises(ConfigError, match="no such schema"):
            schema_of({"schema": wrong}, "x")


def test_current_schema_is_unchanged_and_written_to_json() -> None:
    assert migrate_config({"schema": 2, "train": {"occupancy": 1}}, to=2) == {"train": {"occupancy": 1}}
    data = RunConfig.from_json(OLD).to_json()
    assert data["schema"] == SCHEMA
    assert RunConfig.from_json(json.loads(json.dumps(data))) == RunConfig.from_json(OLD)


def test_tensor_and_scalar_names_of_checkpoints_are_migrated() -> None:
    tensors = {
        "field.table": 1,
        "field.density_layers.0": 2,
        "occupancy.values": 3,
        "adam.first.table": 4,
        "adam.second.density_layers.0": 5,
        "average.table": 6,
        "miner.tau": 7,
        "pixels.errors": 8,
    }
    renamed = migrate_tensors(tensors, 1, to=2)
    assert renamed == {
        "field.table": 1,
        "field.density_layers.0": 2,
        "sampler.values": 3,
        "adam.first.field.table": 4,
        "adam.second.field.density_layers.0": 5,
        "average.table": 6,
        "miner.tau": 7,
        "pixels.errors": 8,
    }
    assert migrate_tensors(renamed, 2, to=2) == renamed
    assert migrate_scalars({"step": 1, "occupancy.swept": True, "adam.updates": 2}, 1, to=2) == {
        "step": 1,
        "sampler.swept": True,
        "adam.updates": 2,
    }


def test_schema_2_to_3_refined_poses_to_the_end_of_a_run() -> None:
    before = {"schema": 2, "train": {"amp": "fp16", "poses": {"lr": 0.002, "fade": 0.7}}}
    assert migrate_config(before, to=3)["train"]["poses"] == {"lr": 0.002, "fade": 0.7, "until": 1.0}
    assert migrate_config({"schema": 2, "train": {"amp": "fp16"}}, to=3) == {"train": {"amp": "fp16"}}
    assert migrate_config({"schema": 3, "train": {"poses": {}}}, to=3) == {"train": {"poses": {}}}
    assert migrate_scalars({"step": 4}, 2, to=3) == {"step": 4, "poses.ended": 0}
    assert migrate_scalars({"step": 4, "poses.ended": 3}, 3, to=3) == {"step": 4, "poses.ended": 3}
    assert migrate_tensors({"poses.twist": 1}, 2, to=3) == {"poses.twist": 1}


def test_schema_3_to_4_kept_the_learning_rate_of_poses() -> None:
    before = {"schema": 3, "train": {"poses": {"lr": 0.002, "until": 0.7}}}
    assert migrate_config(before, to=4)["train"]["poses"] == {"lr": 0.002, "until": 0.7, "final": 1.0}
    assert migrate_config({"schema": 3, "train": {"amp": "fp16"}}, to=4) == {"train": {"amp": "fp16"}}
    assert migrate_scalars({"step": 4}, 3, to=4) == {"step": 4}
    assert migrate_tensors({"poses.twist": 1}, 3, to=4) == {"poses.twist": 1}


def test_digest_is_computed_from_the_config_as_stored() -> None:
    assert model_digest(OLD) == OLD_DIGEST
    assert model_digest({**OLD, "scene": "elsewhere", "steps": 9, "schema": 1}) == OLD_DIGEST
    assert model_digest(old(amp="fp16")) != OLD_DIGEST
    assert model_digests(OLD) == (OLD_DIGEST,)
    # The config is written again with a setting that did not exist before.
    later = {**old(new_setting=0), "schema": 2}
    once = keep_earlier_digests(later, OLD)
    assert once == {**later, "earlier_digests": [OLD_DIGEST]}
    assert model_digests(once) == (model_digest(later), OLD_DIGEST)
    assert keep_earlier_digests(later, once) == once, "writing the same again changes nothing"
    latest = old(new_setting=0, newer_setting=0)
    assert model_digests(keep_earlier_digests(latest, once)) == (model_digest(latest), model_digest(later), OLD_DIGEST)
    assert keep_earlier_digests({**OLD, "steps": 9}, OLD) == {**OLD, "steps": 9}
    assert "earlier_digests" not in identity(once)
    assert identity(once) == identity({**later, "schema": 5})
