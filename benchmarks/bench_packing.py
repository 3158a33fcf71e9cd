"""Packs many 12-megapixel JPEGs and watches the resident memory of the process that does it.

    python benchmarks/bench_packing.py --n 1000 --budget-mb 512

Prints one JSON row. `ok` means that resident memory, imports and all, stayed under the budget both while packing and
while gathering random pixels. 1,000 images need about 5 GB for the JPEGs and 36 GB for the pack.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

WIDTH, HEIGHT = 4000, 3000
BASES = 24
PIXELS = 4096


def base_jpeg(seed: int) -> bytes:
    """A textured picture, encoded: smooth noise at several scales, as detailed as a photo (about 5 MB)."""
    rng = np.random.default_rng(seed)
    total = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    for cells, strength in ((12, 120.0), (150, 50.0), (1000, 40.0), (2400, 45.0)):
        coarse = Image.fromarray(rng.integers(0, 256, (cells * 3 // 4, cells, 3), dtype=np.uint8))
        total += np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32) * (strength / 255.0)
    file = io.BytesIO()
    Image.fromarray(np.clip(total, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=92)
    return file.getvalue()


def write_images(folder: Path, count: int) -> int:
    """`count` JPEGs with different contents, and a transforms.json; returns their bytes.

    Encoding is slow, so files share a few dozen pictures and differ in a comment.
    """
    (folder / "images").mkdir(parents=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        bases = list(pool.map(base_jpeg, range(min(BASES, count))))
    total, frames = 0, []
    for i in range(count):
        base = bases[i % len(bases)]
        note = f"image {i:06d}".encode()
        data = base[:2] + b"\xff\xfe" + (len(note) + 2).to_bytes(2, "big") + note + base[2:]
        name = f"images/{i:06d}.jpg"
        (folder / name).write_bytes(data)
        total += len(data)
        angle = 2 * np.pi * i / count
        c, s = float(np.cos(angle)), float(np.sin(angle))
        pose = [[-s, 0.0, c, 4 * c], [c, 0.0, s, 4 * s], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
        frames.append({"file_path": name, "transform_matrix": pose})
    camera = {"w": WIDTH, "h": HEIGHT, "fl_x": 3200.0, "fl_y": 3200.0, "cx": WIDTH / 2, "cy": HEIGHT / 2}
    (folder / "transforms.json").write_text(json.dumps({**camera, "frames": frames}))
    return total


def work(folder: Path, budget: int, seconds: float) -> None:
    """The process under watch: packs, then gathers; prints one JSON line per phase."""
    import torch

    from raymine.contracts import Bounds, Camera, Frame, Scene
    from raymine.scenes.bank import open_bank

    described = json.loads((folder / "transforms.json").read_text())
    camera = Camera(*(described[key] for key in ("w", "h", "fl_x", "fl_y", "cx", "cy")))
    frames = tuple(
        Frame(folder / frame["file_path"], 0, np.array(frame["transform_matrix"])[:3]) for frame in described["frames"]
    )
    scene = Scene(folder, "bench", (camera,), frames, Bounds(), None, np.eye(4))
    rss = psutil.Process().memory_info().rss
    print(json.dumps({"phase": "imported", "rss": rss}), flush=True)
    start = time.perf_counter()
    with open_bank(scene, range(len(frames)), cache_dir=folder / "cache", memory_budget=budget) as bank:
        print(json.dumps({"phase": "packed", "seconds": time.perf_counter() - start, "bytes": bank.nbytes}), flush=True)
        steps, deadline, times = 0, time.perf_counter() + seconds, []
        while time.perf_counter() < deadline:
            generator = torch.Generator().manual_seed(steps)
            i, y, x = (torch.randint(0, top, (PIXELS,), generator=generator) for top in (len(bank), HEIGHT, WIDTH))
            began = time.perf_counter()
            bank.gather(i, y, x)
            times.append(time.perf_counter() - began)
            steps += 1
        print(json.dumps({"phase": "gathered", "ms": 1e3 * float(np.median(times)), "gathers": steps}), flush=True)


class Watch:
    """Samples the resident memory of a process every 5 ms; `peak` is in bytes and may be reset."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._process = psutil.Process(pid)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self.peak = max(self.peak, self._process.memory_info().rss)
                time.sleep(0.005)
        except psutil.NoSuchProcess:
            return


def watched_run(folder: Path, budget: int, seconds: float) -> dict[str, float]:
    """Runs `work` in a process of its own; returns its figures, memory in bytes."""
    command = [sys.executable, __file__, "--work", str(folder), "--budget-mb", str(budget >> 20)]
    process = subprocess.Popen([*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)
    watch = Watch(process.pid)
    found: dict[str, float] = {}
    assert process.stdout is not None
    for line in process.stdout:
        row = json.loads(line)
        phase = row.pop("phase")
        found |= {f"{phase}_{key}": value for key, value in row.items()} | {f"{phase}_peak": watch.peak}
        watch.peak = 0
    if process.wait() != 0:
        raise SystemExit(f"packing failed with exit code {process.returncode}")
    return found


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def row_of(found: dict[str, float], count: int, jpeg_bytes: int, budget: int) -> dict[str, object]:
    peak = max(found["packed_peak"], found["gathered_peak"])
    return {
        "bench": "packing",
        "device": f"{cpu_name()}, {os.cpu_count()} cores",
        "commit": commit(),
        "n": count,
        "shape": [HEIGHT, WIDTH, 3],
        "jpeg_mb": round(jpeg_bytes / 2**20),
        "pack_mb": round(found["packed_bytes"] / 2**20),
        "seconds": round(found["packed_seconds"], 2),
        "images_per_s": round(count / found["packed_seconds"], 2),
        "baseline_rss_mb": round(found["imported_rss"] / 2**20, 1),
        "packing_peak_rss_mb": round(found["packed_peak"] / 2**20, 1),
        "gather_peak_rss_mb": round(found["gathered_peak"] / 2**20, 1),
        "budget_mb": budget >> 20,
        "gather_ms_median": round(found["gathered_ms"], 3),
        "gather_pixels": PIXELS,
        "ok": peak <= budget,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1000, help="number of images")
    parser.add_argument("--dir", type=Path, default=None, help="where to put images and pack (default: a new folder)")
    parser.add_argument("--budget-mb", type=int, default=512, help="memory budget in MB")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to gather random pixels")
    parser.add_argument("--keep", action="store_true", help="leave images and pack in place")
    parser.add_argument("--work", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work, options.budget_mb << 20, options.seconds)
        return
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-packing-", dir=options.dir))
    try:
        jpeg_bytes = write_images(folder, options.n)
        found = watched_run(folder, options.budget_mb << 20, options.seconds)
        print(json.dumps(row_of(found, options.n, jpeg_bytes, options.budget_mb << 20)))
    finally:
        if options.keep:
            print(f"kept {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
