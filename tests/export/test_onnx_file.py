"""ONNX of hash-grid fields."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch

from raymine.errors import ConfigError
from raymine.export import onnx_file
from raymine.export.onnx_file import OnnxField, check_onnx, write_onnx
from raymine.export.snapshot import probes
from support.export_models import ball_model, hash_model


@pytest.mark.parametrize("levels", [1, 3])
def test_file_gives_the_pre_activations_of_the_model(tmp_path: Path, levels: int) -> None:
    model = hash_model(levels=levels)
    write_onnx(tmp_path / "a.onnx", model)
    assert check_onnx(tmp_path / "a.onnx", model) < 1e-3
    # The comparison sees another model.
    model.field.table.data.mul_(1.5)  # type: ignore[union-attr, operator]
    assert check_onnx(tmp_path / "a.onnx", model) > 1e-3


def test_written_file_is_evaluated_in_pieces_and_knows_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = replace(hash_model(levels=2), step=30)
    write_onnx(tmp_path / "a.onnx", model)
    monkeypatch.setattr(onnx_file, "_POINTS", 64)
    field = OnnxField(tmp_path / "a.onnx")
    points, directions = probes(model, 150)
    ours, theirs = model.output(points, directions), field(points, directions)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(field.density(points), theirs[1])
    assert field.step == 30
    write_onnx(tmp_path / "b.onnx", replace(model, step=None))
    assert OnnxField(tmp_path / "b.onnx").step is None


def test_files_without_a_field_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match="Protobuf parsing failed"):
        OnnxField(tmp_path / "a.onnx")
    value = onnx.helper.make_tensor_value_info
    ends = [value(name, onnx.TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Abs", ["x"], ["y"])], "other", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "b.onnx")
    with pytest.raises(ValueError, match="it is not the ONNX file of a field"):
        OnnxField(tmp_path / "b.onnx")


def test_other_fields_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="An ONNX file holds a hash-grid field"):
        write_onnx(tmp_path / "a.onnx", ball_model())
