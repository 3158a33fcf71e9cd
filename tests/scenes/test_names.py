"""Names of training images: unique ones for reports, and the images that a user names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raymine.contracts import Scene, Split
from raymine.errors import ConfigError
from raymine.scenes import load_scene
from raymine.scenes.names import frames_named, training_names
from support.disc_scene import write_scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Training images r_0, r_90, r_180 and r_270 and the test image r_45."""
    return load_scene(write_scene(tmp_path))


def with_frame(scene: Scene, image: str, split: Split) -> Scene:
    frame = replace(scene.frames[0], image=scene.root / image, split=split)
    return replace(scene, frames=(*scene.frames, frame))


def test_an_image_is_named_by_its_stem_where_no_other_training_image_has_it(scene: Scene) -> None:
    assert list(training_names(scene).values()) == ["r_0", "r_90", "r_180", "r_270"]
    assert training_names(with_frame(scene, "test/r_0.png", "test"))[0] == "r_0"
    other_suffix = training_names(with_frame(scene, "train/r_0.jpg", "train"))
    assert [other_suffix[0], other_suffix[len(scene.frames)]] == ["r_0.png", "r_0.jpg"]
    other_folder = training_names(with_frame(scene, "more/r_0.png", "train"))
    assert [other_folder[0], other_folder[len(scene.frames)]] == ["train/r_0.png", "more/r_0.png"]


@pytest.mark.parametrize("name", ["r_90", "r_90.png", "train/r_90.png", "./train/r_90.png"])
def test_stem_file_name_and_path_name_the_same_image(scene: Scene, name: str) -> None:
    assert frames_named(scene, [name]) == (1,)


def test_frames_come_in_file_order_and_once(scene: Scene) -> None:
    assert frames_named(scene, ["r_270", "r_0", "r_0.png"]) == (0, 3)
    assert frames_named(scene, []) == ()


def test_unknown_ambiguous_and_test_names_are_refused(scene: Scene) -> None:
    with pytest.raises(ConfigError, match=r"no training image named 'r_91'. Did you mean `r_90`\?"):
        frames_named(scene, ["r_91"])
    with pytest.raises(ConfigError, match="'r_45' is an image of the test split, which is not trained on"):
        frames_named(scene, ["r_45"])
    twice = with_frame(scene, "more/r_0.png", "train")
    with pytest.raises(ConfigError, match=r"'r_0' fits 2 training images: train/r_0.png, more/r_0.png"):
        frames_named(twice, ["r_0"])
