"""Mesh files: GLB, PLY and OBJ, written and read by trimesh."""

from __future__ import annotations

import json
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from raymine.errors import ConfigError
from raymine.export.model import Placement
from raymine.files import atomic_file, staging_folder

from .extract import Mesh, require


def placed(mesh: Mesh, placement: Placement) -> Mesh:
    """The mesh in another world."""
    vertices, normals = placement.points(mesh.vertices), placement.vectors(mesh.normals)
    return Mesh(vertices, mesh.faces, normals, mesh.colours, mesh.uv, mesh.texture)


def files_of(path: Path) -> tuple[Path, ...]:
    """The files that a mesh at `path` may consist of: an OBJ has its material and its texture beside it."""
    return (path,) if path.suffix.lower() != ".obj" else (path, path.with_suffix(".mtl"), path.with_suffix(".png"))


def write_mesh(path: Path, mesh: Mesh) -> tuple[Path, ...]:
    """Write a mesh in the format of the suffix; returns the files. Coordinates are written as they are.

    The colours are light that was seen, so a GLB says that its material is not lit again (KHR_materials_unlit).
    """
    made = _trimesh_of(mesh)
    suffix = path.suffix.lower()
    if suffix == ".obj":
        return _write_obj(path, made, mesh.texture is not None)
    if suffix == ".glb":
        data = _unlit(made.export(file_type="glb", include_normals=True))
    else:
        data = made.export(file_type="ply", vertex_normal=True)
    with atomic_file(path, "write the mesh") as file:
        file.write(data)
    return (path,)


def read_mesh(path: Path) -> Mesh:
    """Read back what `write_mesh` wrote. Colours of vertices are not read."""
    trimesh = require("trimesh")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trimesh.load(path, force="mesh", process=False)
    if not len(found.faces):
        raise ConfigError(f"{path} holds no faces.")
    uv = getattr(found.visual, "uv", None)
    material = getattr(found.visual, "material", None)
    picture = getattr(material, "baseColorTexture", None) or getattr(material, "image", None)
    texture = None if picture is None else np.asarray(picture.convert("RGB"))
    return Mesh(
        np.asarray(found.vertices, np.float64),
        np.asarray(found.faces, np.int64),
        np.asarray(found.vertex_normals, np.float64),
        uv=None if uv is None or texture is None else np.asarray(uv, np.float64),
        texture=texture if uv is not None else None,
    )


def _trimesh_of(mesh: Mesh) -> Any:
    trimesh = require("trimesh")
    from PIL import Image

    visual = None
    if mesh.texture is not None:
        image = Image.fromarray(mesh.texture)
        material = trimesh.visual.material.PBRMaterial(
            name="raymine", baseColorTexture=image, metallicFactor=0.0, roughnessFactor=1.0, doubleSided=True
        )
        visual = trimesh.visual.TextureVisuals(uv=mesh.uv, material=material)
    elif mesh.colours is not None:
        values = (np.clip(mesh.colours, 0, 1) * 255 + 0.5).astype(np.uint8)
        opaque = np.concatenate((values, np.full((len(values), 1), 255, np.uint8)), 1)
        visual = trimesh.visual.ColorVisuals(vertex_colors=opaque)
    return trimesh.Trimesh(
        mesh.vertices, mesh.faces, vertex_normals=mesh.normals, visual=visual, process=False, validate=False
    )


def _write_obj(path: Path, made: Any, textured: bool) -> tuple[Path, ...]:
    """An OBJ and, with a texture, its material and picture, which appear together."""
    trimesh = require("trimesh")
    if textured:
        made.visual.material = made.visual.material.to_simple()
        made.visual.material.name = path.stem
    text, others = trimesh.exchange.obj.export_obj(
        made, include_normals=True, include_color=not textured, return_texture=True, mtl_name=f"{path.stem}.mtl"
    )
    with staging_folder(path.parent, "write the mesh") as folder:
        written = []
        for name, data in {**others, path.name: text}.items():
            (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
            written.append(name)
        for name in written:
            os.replace(folder / name, path.parent / name)
    return tuple(path.parent / name for name in reversed(written))


def _unlit(data: bytes) -> bytes:
    """A GLB whose materials are not lit: the JSON chunk of the file, changed, with the lengths that follow from it."""
    (length,) = struct.unpack_from("<I", data, 12)
    document = json.loads(data[20 : 20 + length])
    for material in document.setdefault("materials", [{"doubleSided": True}]):
        material.setdefault("extensions", {})["KHR_materials_unlit"] = {}
    for mesh in document["meshes"]:
        for primitive in mesh["primitives"]:
            primitive.setdefault("material", 0)
    document["extensionsUsed"] = sorted({*document.get("extensionsUsed", ()), "KHR_materials_unlit"})
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    rest = data[20 + length :]
    return b"".join(
        (data[:8], struct.pack("<II", 20 + len(text) + len(rest), len(text)), b"JSON", text, rest),
    )
