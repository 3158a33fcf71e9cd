"""Binary PLY files of vertices: one record per vertex, little-endian. The reader takes back what the writer wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raymine.errors import ConfigError
from raymine.files import UnreadableFile, atomic_file, read_file

_NAMES = {"f4": "float", "f8": "double", "u1": "uchar", "i4": "int", "u4": "uint"}
_KINDS = {**{name: kind for kind, name in _NAMES.items()}, "float32": "f4", "float64": "f8", "uint8": "u1"}


def write_ply(path: Path, vertices: np.ndarray, comments: tuple[str, ...] = ()) -> None:
    """Write a structured array [n] of vertices; its field names and types become the properties."""
    assert vertices.dtype.names is not None
    lines = ["ply", "format binary_little_endian 1.0", *(f"comment {text}" for text in comments)]
    lines.append(f"element vertex {len(vertices)}")
    lines += [f"property {_NAMES[vertices.dtype[name].str[1:]]} {name}" for name in vertices.dtype.names]
    with atomic_file(path, "write the PLY file") as file:
        file.write("\n".join([*lines, "end_header\n"]).encode())
        file.write(vertices.astype(vertices.dtype.newbyteorder("<")).tobytes())


def read_ply(path: Path) -> np.ndarray:
    """The vertices of a binary little-endian PLY file, as a structured array. Other elements are ignored."""
    try:
        data = read_file(path)
    except UnreadableFile as error:
        raise ConfigError(f"{path} {error.what}") from error
    head, mark, body = data.partition(b"end_header\n")
    lines = [line.split() for line in head.decode("ascii", "replace").splitlines()]
    if not mark or not lines or lines[0] != ["ply"] or ["format", "binary_little_endian", "1.0"] not in lines:
        raise ConfigError(f"{path} is not a binary little-endian PLY file.")
    count, fields, element = 0, [], ""
    for words in lines:
        if words[:1] == ["element"]:
            element = words[1]
            count = int(words[2]) if element == "vertex" else count
        elif words[:1] == ["property"] and element == "vertex":
            fields.append((words[2], f"<{_KINDS[words[1]]}"))
    dtype = np.dtype(fields)
    if len(body) < count * dtype.itemsize:
        raise ConfigError(f"{path} is cut short: it should have {count} vertices of {dtype.itemsize} bytes.")
    return np.frombuffer(body, dtype, count)
