"""The image bank when processes are killed, interrupted, or run at the same time."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from raymine.contracts import Scene
from raymine.scenes.bank import pack as bank_pack
from support.bank_scenes import bank_folder, noise, opened, packs, save

CHILD = """
    import sys, time
    from pathlib import Path
    import numpy as np
    from raymine.contracts import Bounds, Camera, Frame, Scene
    from raymine.scenes.bank import pack as bank_pack
    from raymine.scenes.bank import open_bank

    root, log, delay = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    frames = tuple(Frame(root / "photos" / f"{i}.png", i, np.eye(4)[:3]) for i in range(6))
    cameras = tuple(Camera(7, 5, 50.0, 50.0, 3.5, 2.5) for _ in frames)
    scene = Scene(root / "photos", "test", cameras, frames, Bounds(), None, np.eye(4))
    original = bank_pack.decode

    def slow(source):
        time.sleep(delay)
        with open(log, "a") as file:
            file.write(source.name + "\\n")
        return original(source)

    bank_pack.decode = slow
    with open_bank(scene, range(6), cache_dir=root / "cache", workers=1, message=print) as bank:
        print(bank.digest, flush=True)
"""


def child(tmp_path: Path, delay: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path), str(tmp_path / "log"), str(delay)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_two_processes_pack_once(tmp_path: Path, photos: Scene) -> None:
    first = child(tmp_path, 0.3)
    wait_for_lines(tmp_path / "log", 1, first)
    with opened(photos, tmp_path, message=(said := []).append) as bank:
        digest = bank.digest
    out, err = first.communicate(timeout=30)
    assert first.returncode == 0, err
    assert out.strip() == digest
    assert len((tmp_path / "log").read_text().splitlines()) == 6
    assert said == [f"Another process is packing {photos.root}; waiting for it."]


def test_packing_continues_after_a_kill(tmp_path: Path, photos: Scene, decodes: list[str]) -> None:
    process = child(tmp_path, 0.15)
    wait_for_lines(tmp_path / "log", 4, process)
    process.kill()
    process.communicate(timeout=30)
    begun = len((tmp_path / "log").read_text().splitlines())
    journal = bank_folder(tmp_path) / "journal.jsonl"
    assert not (bank_folder(tmp_path) / "index.json").exists()
    # A truncated line, as a power cut may leave it.
    with open(journal, "ab") as file:
        file.write(b'{"slot": 5, "dig')
    (bank_folder(tmp_path) / ".index.json.123-ab.raymine-tmp").write_text("{")
    calls: list[int] = []
    with opened(photos, tmp_path, progress=lambda done, total: calls.append(done)) as bank:
        for i in range(6):
            np.testing.assert_array_equal(bank.image(i)[..., :3], noise(i, 5, 7))
    assert calls[0] >= begun - 1 >= 3
    assert len(decodes) == 6 - calls[0]
    assert sorted(path.name.split("-")[0] for path in bank_folder(tmp_path).iterdir()) == [
        "index.json",
        "lock",
        "pack",
        "use",
    ]


def test_resumed_packing_decodes_lost_and_changed_images_again(
    tmp_path: Path, photos: Scene, decodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bank_pack, "write_index", stop)
    with pytest.raises(KeyboardInterrupt):
        opened(photos, tmp_path)
    monkeypatch.undo()
    (pack,) = packs(tmp_path)
    data = bytearray(pack.read_bytes())
    data[:105] = bytes(105)  # the first slot never reached the disk
    pack.write_bytes(data)
    save(photos.frames[4].image, noise(70, 5, 7))
    again: list[str] = []
    original = bank_pack.decode
    monkeypatch.setattr(bank_pack, "decode", lambda source: (again.append(source.name), original(source))[1])
    with opened(photos, tmp_path) as bank:
        np.testing.assert_array_equal(bank.image(0)[..., :3], noise(0, 5, 7))
        np.testing.assert_array_equal(bank.image(4)[..., :3], noise(70, 5, 7))
    assert sorted(again) == ["0.png", "4.png"]
    assert len(decodes) == 6


def test_interrupted_update_keeps_the_old_pack(tmp_path: Path, photos: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(photos, tmp_path).close()
    save(photos.frames[0].image, noise(80, 5, 7))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bank_pack, "write_index", stop)
    with pytest.raises(KeyboardInterrupt):
        opened(photos, tmp_path)
    monkeypatch.undo()
    assert len(packs(tmp_path)) == 2
    with opened(photos, tmp_path) as bank:
        np.testing.assert_array_equal(bank.image(0)[..., :3], noise(80, 5, 7))
    assert len(packs(tmp_path)) == 1
