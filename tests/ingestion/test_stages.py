"""What is finished of an ingest, and which folders are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.errors import ConfigError, ResourceError
from raymine.ingestion.stages import Stages, give_up, open_stages, publish, require_free, staging_of


def test_finished_stage_is_found_again_with_the_same_options_only(tmp_path: Path) -> None:
    first = Stages(tmp_path, "photos")
    assert first.result("one", {"size": 1}) is None
    first.finish("one", [1, 2], 3.5)
    assert first.result("two", {}) is None
    first.finish("two", "x", 1.0)

    def found(digest: str, size: int) -> list[bool]:
        again = Stages(tmp_path, digest)
        return [again.result("one", {"size": size}) is not None, again.result("two", {}) is not None]

    assert found("photos", 1) == [True, True]
    assert found("photos", 2) == [False, False], "later stages depend on options of earlier ones"
    assert found("others", 1) == [False, False]
    assert Stages(tmp_path, "photos").result("one", {"size": 1}) == ([1, 2], 3.5)


def test_begun_stage_is_reset_only_if_its_key_differs(tmp_path: Path) -> None:
    calls = []
    for size in (1, 1, 2, 1):
        stages = Stages(tmp_path, "photos")
        stages.result("one", {"size": size})
        stages.begin("one", lambda size=size: calls.append(size))  # type: ignore[misc]
    assert calls == [1, 2, 1]


def test_staging_folder_of_other_photos_or_another_process_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "scene"
    with (
        open_stages(out, "photos"),
        pytest.raises(ConfigError, match="Another process"),
        open_stages(out, "photos"),
    ):
        pass
    with open_stages(out, "photos"):
        pass
    with pytest.raises(ConfigError, match="other photos"), open_stages(out, "others"):
        pass
    assert staging_of(out).is_dir()
    assert not out.exists()


def test_other_photos_may_follow_an_ingest_that_found_no_poses(tmp_path: Path) -> None:
    out = tmp_path / "scene"
    with open_stages(out, "photos") as stages:
        (stages.folder / "images").mkdir()
        give_up(stages.folder)
    with open_stages(out, "photos") as stages:
        assert (stages.folder / "images").exists(), "the same photos keep what is done"
    with open_stages(out, "more photos") as stages:
        assert not (stages.folder / "images").exists()
    with pytest.raises(ConfigError, match="other photos"), open_stages(out, "photos"):
        pass


def test_folder_that_holds_something_is_refused_and_stays(tmp_path: Path) -> None:
    made, out = tmp_path / "made", tmp_path / "out"
    made.mkdir()
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(ConfigError, match="not changed"):
        publish(made, out)
    assert (out / "mine").read_text() == "x"
    (out / "mine").unlink()
    publish(made, out)
    assert not made.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError):
        require_free(tmp_path / "file")
