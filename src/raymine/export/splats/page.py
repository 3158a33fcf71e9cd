"""One HTML file with Gaussian splats and a viewer for them (`viewer.html`): nothing is fetched when it opens.

The splats are quantised, one plane of bytes after another (planes compress better than records), compressed with gzip
and embedded as base64. Positions have 24 bits an axis, the rest 8 bits a number.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.export.model import Placement
from raymine.export.paths import focus_point
from raymine.files import UnreadableFile, atomic_file, read_file

from .record import Splats

_TEMPLATE = Path(__file__).with_name("viewer.html")

_WIDEST = 0.999
"""Higher harmonics beyond this quantile of their size are cut off, so that a few do not coarsen all others."""


def write_page(path: Path, splats: Splats, scene: Scene, placement: Placement) -> Splats:
    """Write the page of splats of the normalised world; returns the splats that the page holds, placed.

    The page opens with the view of the first frame of the scene.
    """
    about, data = pack(splats.placed(placement))
    about |= _opening(scene, placement)
    text = _TEMPLATE.read_text(encoding="utf-8")
    packed = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
    # "<" would end the script element in which the description stands.
    described = json.dumps(about).replace("<", "\\u003c")
    text = text.replace("@TITLE@", html.escape(str(about["title"])))
    with atomic_file(path, "write the page") as file:
        file.write(text.replace("@ABOUT@", described).replace("@DATA@", packed).encode())
    return read_page(path)


def read_page(path: Path) -> Splats:
    """The splats of a page, as its viewer decodes them."""
    try:
        text = read_file(path).decode()
    except UnreadableFile as error:
        raise ConfigError(f"{path} {error.what}") from error
    parts = [re.search(f'<script id="{name}"[^>]*>(.*?)</script>', text, re.DOTALL) for name in ("about", "data")]
    if parts[0] is None or parts[1] is None:
        raise ConfigError(f"{path} is not a page of splats.")
    return unpack(json.loads(parts[0][1]), gzip.decompress(base64.b64decode(parts[1][1])))


def pack(splats: Splats) -> tuple[dict[str, Any], bytes]:
    """Splats as bytes, and the numbers that turn them back: for each part its lowest value and its step."""
    n, about, planes = len(splats), dict[str, Any](), list[bytes]()
    low, high = splats.means.double().amin(0), splats.means.double().amax(0)
    step = ((high - low) / (2**24 - 1)).clamp_min(1e-30)
    whole = ((splats.means.double() - low) / step).round().to(torch.int64).numpy()
    planes += [
        ((whole[:, axis] >> shift) & 255).astype(np.uint8).tobytes() for axis in range(3) for shift in (0, 8, 16)
    ]
    about |= {"count": n, "degree": splats.degree, "low": low.tolist(), "step": step.tolist()}

    def add(name: str, values: torch.Tensor, lowest: float, highest: float) -> None:
        width = max(1e-9, (highest - lowest) / 255)
        about[name] = [lowest, width]
        rows = ((values.T - lowest) / width).round().clamp(0, 255).to(torch.uint8)
        planes.append(rows.contiguous().numpy().tobytes())

    scales = splats.log_scales.clamp_min(float(splats.log_scales.max()) - 12)
    add("scales", scales, float(scales.min()), float(scales.max()))
    add("turns", torch.nn.functional.normalize(splats.quaternions, dim=-1), -1.0, 1.0)
    add("opacity", splats.logits.sigmoid()[:, None], 0.0, 1.0)
    base = splats.harmonics[:, 0]
    add("colour", base, float(base.min()), float(base.max()))
    rest = splats.harmonics[:, 1:].reshape(n, -1)
    if rest.shape[1]:
        most = float(np.quantile(rest.abs().numpy(), _WIDEST)) or 1e-6
        add("rest", rest, -most, most)
    return about, b"".join(planes)


def unpack(about: dict[str, Any], data: bytes) -> Splats:
    """The inverse of `pack`, up to the steps."""
    n, terms = about["count"], (about["degree"] + 1) ** 2
    planes = np.frombuffer(data, np.uint8).reshape(-1, n)
    digits = planes[:9].astype(np.int64).reshape(3, 3, n)
    whole = digits[:, 0] | digits[:, 1] << 8 | digits[:, 2] << 16
    means = torch.tensor(about["low"]) + torch.from_numpy(whole.T.copy()) * torch.tensor(about["step"])

    def take(name: str, start: int, count: int) -> torch.Tensor:
        lowest, width = about[name]
        return torch.from_numpy(planes[start : start + count].T.astype(np.float32)) * width + lowest

    opacity = take("opacity", 16, 1)[:, 0].clamp(1e-6, 1 - 1e-6)
    colour = take("colour", 17, 3)[:, None]
    if terms > 1:
        colour = torch.cat((colour, take("rest", 20, 3 * (terms - 1)).view(n, terms - 1, 3)), 1)
    return Splats(means.float(), take("scales", 9, 3), take("turns", 12, 4), torch.logit(opacity), colour)


def _opening(scene: Scene, placement: Placement) -> dict[str, Any]:
    """The view with which the page opens, in the world of the file: pose, point to turn about, up, field of view."""
    frame = scene.frames[0]
    camera = scene.cameras[frame.camera]
    poses = np.stack([each.pose for each in scene.frames])
    centre = placement.points(frame.pose[:, 3][None])[0]
    rotation = placement.rotation @ frame.pose[:, :3]
    target = placement.points(focus_point(poses)[None])[0]
    fov = math.degrees(2 * math.atan2(camera.height / 2, camera.fy))
    return {
        "title": f"{scene.root.name or 'scene'} in raymine",
        "pose": np.concatenate((rotation, centre[:, None]), 1).reshape(-1).tolist(),
        "distance": max(1e-6, float(np.linalg.norm(target - centre))),
        "up": placement.vectors(np.array([[0.0, 0.0, 1.0]]))[0].tolist(),
        "fov": min(fov, 110.0),
        "background": list(scene.background or (0.1, 0.1, 0.12)),
    }
