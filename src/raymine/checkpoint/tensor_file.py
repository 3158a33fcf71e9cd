"""The tensor file of a checkpoint, in the safetensors format. It is written as a stream and verified when read."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from raymine.errors import CheckpointError
from raymine.files import JSON, UnreadableFile, atomic_file, file_digest

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


_PIECE = 16 << 20
"""Bytes of a CUDA tensor that are brought to the host at a time."""


@dataclass(frozen=True)
class Fingerprint:
    """Size in bytes and SHA-256 (hex) of a tensor file."""

    bytes: int
    sha256: str


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Fingerprint:
    """Write tensors of any device to `path`, atomically and bit for bit.

    This streams the tensors itself, for three reasons: the library would hold all tensors in memory twice; the checksum
    is that of the data and not of what reached the disk; and a full disk gives an error code. The format is an 8-byte
    header length, a JSON header padded to 8 bytes, then raw little-endian data.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"Tensor `{name}` has type {tensor.dtype}, which a checkpoint cannot hold.")
    # With the widest dtypes first, every tensor is aligned to its element size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    hasher = hashlib.sha256()
    with atomic_file(path, "write the checkpoint") as file:
        header = _header(order, tensors)
        hasher.update(header)
        file.write(header)
        for name in order:
            for data in _pieces(tensors[name]):
                hasher.update(data)
                file.write(data)
        return Fingerprint(file.size, hasher.hexdigest())


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, in order. Those of a CUDA tensor come through one small buffer of pinned memory.

    A copy of the whole tensor to new host memory would be slow: 0.5 s for 195 MB on an H200, most of it page faults.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    if not flat.numel():
        return
    data = flat.view(torch.uint8)
    if tensor.device.type == "cpu":
        yield data.numpy().data
        return
    buffer = torch.empty(min(len(data), _PIECE), dtype=torch.uint8, pin_memory=tensor.device.type == "cuda")
    for part in data.split(_PIECE):
        yield buffer[: len(part)].copy_(part).numpy().data


def read_tensors(path: Path, expected: Fingerprint) -> dict[str, Tensor]:
    """The tensors of `path`, on the CPU; `CheckpointError` if the file differs from what was written."""
    import safetensors
    import safetensors.torch

    _verify(path, expected)
    try:
        # The library opens no file whose name is not UTF-8, but it reads bytes.
        named_in_utf8 = str(path).encode(errors="replace") == os.fsencode(path)
        stored = safetensors.torch.load_file(path) if named_in_utf8 else safetensors.torch.load(path.read_bytes())
        # Copy the verified bytes: tensors of a memory-mapped file would change with the file.
        return {name: value.clone() for name, value in stored.items()}
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        # The library fails with other errors than its own where an intact file holds what it does not expect.
        raise CheckpointError(f"{path} is damaged: {error}.") from error


def _header(order: list[str], tensors: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, JSON] = {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _verify(path: Path, expected: Fingerprint) -> None:
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise CheckpointError(f"{path} is damaged: it is not a file.")
        if state.st_size != expected.bytes:
            raise CheckpointError(f"{path} is damaged: {state.st_size} bytes, {expected.bytes} were written.")
        found = file_digest(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing, though its JSON is there.") from error
    except UnreadableFile as error:
        raise CheckpointError(f"{path} {error.what}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    if found != expected.sha256:
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum.")
