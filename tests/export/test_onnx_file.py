"""ONNX of hash-grid fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.errors import ConfigError
from raymine.export.onnx_file import check_onnx, write_onnx
from support.export_models import ball_model, hash_model


@pytest.mark.parametrize("levels", [1, 3])
def test_file_gives_the_pre_activations_of_the_model(tmp_path: Path, levels: int) -> None:
    model = hash_model(levels=levels)
    write_onnx(tmp_path / "a.onnx", model)
    assert check_onnx(tmp_path / "a.onnx", model) < 1e-3
    # The comparison sees another model.
    model.field.table.data.mul_(1.5)  # type: ignore[union-attr, operator]
    assert check_onnx(tmp_path / "a.onnx", model) > 1e-3


def test_other_fields_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="An ONNX file holds a hash-grid field"):
        write_onnx(tmp_path / "a.onnx", ball_model())
