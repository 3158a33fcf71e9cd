"""Records of the mining benchmark: round trip through JSON, and errors for other versions and damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymine.bench import read_document
from raymine.bench.records import Document, write_document
from raymine.config import from_json, to_json
from raymine.errors import RunError
from support.bench_records import made_up_document, made_up_run


def test_results_round_trip_and_unreadable_files_raise(tmp_path: Path) -> None:
    document = made_up_document((made_up_run("none", 0, [1.5] * 12), made_up_run("hard", 0, [2.5] * 12)))
    write_document(tmp_path, document)
    assert read_document(tmp_path) == document
    assert from_json(Document, to_json(document)) == document
    data = json.loads((tmp_path / "mining.json").read_text())
    (tmp_path / "mining.json").write_text(json.dumps({**data, "version": 99}))
    with pytest.raises(RunError, match="of this version"):
        read_document(tmp_path)
    (tmp_path / "mining.json").write_text(json.dumps(data)[:-20])
    with pytest.raises(RunError, match="is not valid JSON"):
        read_document(tmp_path)
