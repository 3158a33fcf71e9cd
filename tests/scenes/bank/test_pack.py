"""The cache of the image bank: reuse, changed and damaged files, unreadable images, disk errors, memory budget."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine.contracts import Scene
from raymine.errors import ConfigError, ResourceError, SceneError
from raymine.scenes.bank import io as bank_io
from raymine.scenes.bank import open_bank
from raymine.scenes.bank import pack as bank_pack
from support.bank_scenes import bank_folder, noise, opened, packs, save, scene_of


def test_a_second_opening_decodes_nothing(tmp_path: Path, photos: Scene, decodes: list[str]) -> None:
    calls: list[tuple[int, int]] = []
    with opened(photos, tmp_path, progress=lambda done, total: calls.append((done, total))) as bank:
        digest = bank.digest
        assert len(bank) == 6
    assert len(decodes) == 6
    assert calls[0] == (0, 6)
    assert calls[-1] == (6, 6)
    with opened(photos, tmp_path) as bank:
        assert bank.digest == digest
    assert len(decodes) == 6


def test_digest_depends_on_content_and_not_on_location(tmp_path: Path, photos: Scene) -> None:
    with opened(photos, tmp_path) as bank:
        digest = bank.digest
    moved = tmp_path / "elsewhere"
    shutil.copytree(photos.root, moved)
    elsewhere = scene_of(moved, [(moved / f"{i}.png", 7, 5) for i in range(6)])
    with opened(elsewhere, tmp_path / "2") as bank:
        assert bank.digest == digest
    save(moved / "0.png", noise(99, 5, 7))
    with opened(elsewhere, tmp_path / "2") as bank:
        assert bank.digest != digest


def test_only_the_changed_image_is_decoded_again(tmp_path: Path, photos: Scene, decodes: list[str]) -> None:
    with opened(photos, tmp_path) as before:
        decodes.clear()
        save(photos.frames[2].image, noise(50, 5, 7, 4))
        with opened(photos, tmp_path) as after:
            assert decodes == ["2.png"]
            for i in range(6):
                expected = noise(50, 5, 7, 4) if i == 2 else noise(i, 5, 7)
                np.testing.assert_array_equal(after.image(i)[..., : expected.shape[2]], expected)
        # A bank that was opened before still reads the old pack, although its file is deleted.
        np.testing.assert_array_equal(before.image(2)[..., :3], noise(2, 5, 7))
    assert len(packs(tmp_path)) == 1


def test_touched_file_with_the_same_content_is_not_decoded_again(
    tmp_path: Path, photos: Scene, decodes: list[str]
) -> None:
    opened(photos, tmp_path).close()
    decodes.clear()
    later = time.time() + 100
    os.utime(photos.frames[1].image, (later, later))
    pack = packs(tmp_path)
    opened(photos, tmp_path).close()
    assert decodes == []
    assert packs(tmp_path) == pack
    index = json.loads((bank_folder(tmp_path) / "index.json").read_text())
    assert index["contents"][1]["stamp"][1] == photos.frames[1].image.stat().st_mtime_ns


def test_image_with_a_changed_mask_is_decoded_again(tmp_path: Path, decodes: list[str]) -> None:
    mask = save(tmp_path / "m.png", np.full((4, 4), 255, np.uint8))
    scene = scene_of(tmp_path, [(save(tmp_path / "a.png", noise(0, 4, 4)), 4, 4)], {0: mask})
    opened(scene, tmp_path).close()
    save(mask, np.zeros((4, 4), np.uint8))
    with opened(scene, tmp_path) as bank:
        assert bank.mask(0).max() == 0  # type: ignore[union-attr]
    assert len(decodes) == 2


def truncate_pack(folder: Path) -> None:
    (pack,) = folder.glob("pack-*")
    os.truncate(pack, pack.stat().st_size - 1)


def flip_a_byte(folder: Path) -> None:
    (pack,) = folder.glob("pack-*")
    data = bytearray(pack.read_bytes())
    data[5 * 7 * 3 + 11] ^= 255
    pack.write_bytes(data)


def remove_pack(folder: Path) -> None:
    (pack,) = folder.glob("pack-*")
    pack.unlink()


def edit_index(change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda folder: (folder / "index.json").write_text(change((folder / "index.json").read_text())) and None


@pytest.mark.parametrize(
    ("harm", "again", "word"),
    [
        (truncate_pack, 6, "bytes instead of"),
        (remove_pack, 6, "pack is missing"),
        (flip_a_byte, 1, "1 images in the cache"),
        (edit_index(lambda text: text[:-9]), 6, "cut short"),
        (edit_index(lambda text: ""), 6, "cut short"),
        (edit_index(lambda text: "[1, 2]"), 6, "lacks what an index has"),
        (edit_index(lambda text: text.replace('"offset": 0', '"offset": 3')), 6, "checksum"),
    ],
)
def test_damaged_cache_is_rebuilt_with_a_warning(
    tmp_path: Path,
    photos: Scene,
    decodes: list[str],
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Path], None],
    again: int,
    word: str,
) -> None:
    opened(photos, tmp_path).close()
    decodes.clear()
    harm(bank_folder(tmp_path))
    with caplog.at_level(logging.WARNING), opened(photos, tmp_path) as bank:
        for i in range(6):
            np.testing.assert_array_equal(bank.image(i)[..., :3], noise(i, 5, 7))
    assert len(decodes) == again
    assert word in caplog.text
    assert len(packs(tmp_path)) == 1


def test_every_unreadable_image_is_named_and_the_others_stay_cached(
    tmp_path: Path, photos: Scene, decodes: list[str]
) -> None:
    good = photos.frames[1].image.read_bytes()
    photos.frames[0].image.write_bytes(photos.frames[0].image.read_bytes()[:-30])
    photos.frames[1].image.write_bytes(b"not a picture")
    photos.frames[2].image.unlink()
    save(photos.frames[3].image, noise(3, 30, 9))
    with pytest.raises(SceneError) as caught:
        opened(photos, tmp_path)
    text = str(caught.value)
    assert "4 images of 6 cannot be read" in text
    for i in range(4):
        assert str(photos.frames[i].image) in text
    assert "0.png is cut short" in text
    assert "1.png is not an image" in text
    assert "2.png cannot be opened: No such file" in text
    assert "9x30 pixels, which does not have the shape of its camera (7x5)" in text
    assert "Replace these files" in text
    assert not (bank_folder(tmp_path) / "index.json").exists()
    for i, data in enumerate((noise(0, 5, 7), None, noise(2, 5, 7), noise(3, 5, 7))):
        if data is None:
            photos.frames[i].image.write_bytes(good)
        else:
            save(photos.frames[i].image, data)
    decodes.clear()
    with opened(photos, tmp_path) as bank:
        np.testing.assert_array_equal(bank.image(1)[..., :3], noise(1, 5, 7))
    assert sorted(decodes) == ["0.png", "1.png", "2.png", "3.png"]


def test_unreadable_image_leaves_the_existing_pack_unchanged(tmp_path: Path, photos: Scene) -> None:
    opened(photos, tmp_path).close()
    index = (bank_folder(tmp_path) / "index.json").read_bytes()
    good = photos.frames[5].image.read_bytes()
    photos.frames[5].image.write_bytes(good[:60])
    with pytest.raises(SceneError, match=r"1 image of 6 cannot be read"):
        opened(photos, tmp_path)
    assert (bank_folder(tmp_path) / "index.json").read_bytes() == index
    photos.frames[5].image.write_bytes(good)
    opened(photos, tmp_path).close()


def test_unreadable_mask_error_names_the_file(tmp_path: Path) -> None:
    mask = tmp_path / "mask.png"
    mask.write_bytes(b"\x89PNG nothing")
    scene = scene_of(tmp_path, [(save(tmp_path / "a.png", noise(0, 4, 4)), 4, 4)], {0: mask})
    with pytest.raises(SceneError, match=r"mask\.png"):
        opened(scene, tmp_path)


def test_too_little_disk_space_raises_before_anything_is_written(
    tmp_path: Path, photos: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bank_pack.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1 << 20))
    with pytest.raises(ResourceError) as caught:
        opened(photos, tmp_path)
    text = str(caught.value)
    assert "needs 32 MB of disk in" in text
    assert "1 MB are free" in text
    assert "downscale=2" in text
    assert "RAYMINE_CACHE" in text
    assert packs(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "no space left on the disk"), (errno.EACCES, "no permission to write")]
)
def test_failed_write_leaves_no_partial_files(
    tmp_path: Path, photos: Scene, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    real, calls = os.pwrite, [0]

    def failing(descriptor: int, data: bytes, offset: int) -> int:
        calls[0] += 1
        if calls[0] > 2:
            raise OSError(number, os.strerror(number))
        return real(descriptor, data, offset)

    monkeypatch.setattr(bank_io.os, "pwrite", failing)
    with pytest.raises(ResourceError, match=words):
        opened(photos, tmp_path)
    assert sorted(path.name for path in bank_folder(tmp_path).iterdir()) == ["lock"]
    monkeypatch.undo()
    opened(photos, tmp_path).close()


def test_short_writes_are_completed(tmp_path: Path, photos: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(bank_io.os, "pwrite", lambda fd, data, offset: real(fd, data[:10], offset))
    with opened(photos, tmp_path) as bank:
        np.testing.assert_array_equal(bank.image(5)[..., :3], noise(5, 5, 7))


def test_image_beyond_the_memory_budget_raises(tmp_path: Path) -> None:
    Image.new("RGB", (1000, 1000)).save(tmp_path / "big.png")
    scene = scene_of(tmp_path, [(tmp_path / "big.png", 1000, 1000)])
    with pytest.raises(ResourceError, match=r"big\.png needs about 11 MB of memory to decode, more than the 2 MB"):
        opened(scene, tmp_path, memory_budget=2 << 20)


def test_concurrent_decodes_stay_within_half_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for i in range(8):
        Image.new("RGB", (500, 500), (i, i, i)).save(tmp_path / f"{i}.png")
        files.append((tmp_path / f"{i}.png", 500, 500))
    now, most, lock, original = [0], [0], threading.Lock(), bank_pack.decode
    goal = [2]

    def slow(source):  # type: ignore[no-untyped-def]
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        # Wait until the allowed number of decodes overlap, also on a busy machine, and then for one too many.
        deadline = time.monotonic() + 5
        while most[0] < goal[0] and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.02)
        try:
            return original(source)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(bank_pack, "decode", slow)
    opened(scene_of(tmp_path, files), tmp_path, memory_budget=13 << 20, workers=8).close()
    assert most[0] == 2  # each takes just over 3,000,000 bytes
    goal[0] = 8
    opened(scene_of(tmp_path, files), tmp_path / "2", workers=8).close()
    assert most[0] == 8


def test_unwritable_cache_raises_resource_error(tmp_path: Path, photos: Scene) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceError, match="cannot be written") as caught:
        open_bank(photos, [0], cache_dir=tmp_path / "file" / "cache")
    assert "RAYMINE_CACHE" in str(caught.value)


def test_invalid_arguments_of_open_bank_raise(tmp_path: Path, photos: Scene) -> None:
    with pytest.raises(ConfigError, match="No frames"):
        open_bank(photos, [], cache_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"Frame 6 does not exist: .* has 6 frames"):
        open_bank(photos, [6], cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="`memory_budget` must be at least 1 MB"):
        open_bank(photos, [0], cache_dir=tmp_path, memory_budget=3)
    with pytest.raises(ConfigError, match="`bank_budget` must be at least 1 MB"):
        open_bank(photos, [0], cache_dir=tmp_path, bank_budget=3)
    with pytest.raises(ConfigError, match="`workers` must be at least 1, got 0"):
        open_bank(photos, [0], cache_dir=tmp_path, workers=0)
