"""Mining in custom training loops: the example scripts, and mining with every kind of sampling."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from raymine.contracts import Bounds, Rays, Samples
from raymine.export.video import count_frames
from raymine.kernels.composite.op import composite
from raymine.mining import PUBLISHED, HardConfig, Miner
from raymine.samplers import OccupancyConfig, OccupancySampler
from support import notebook

EXAMPLES = Path(__file__).parent.parent / "examples"
NEAR, FAR, RAYS = 1.2, 2.8, 96


def run(name: str, *arguments: str, warnings: str = "error") -> str:
    """Run an example; returns its output."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-W", warnings, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def picture(path: Path) -> np.ndarray:
    """A picture that shows something."""
    found = np.asarray(Image.open(path).convert("RGB")).astype(float)
    assert found.std() > 5, f"{path.name} is blank"
    return found


def test_every_example_is_run_here_and_short() -> None:
    tests = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'run("{path.name}"' in tests, f"no test runs {path.name}"
        assert len(path.read_text().splitlines()) < 80, f"{path.name} is long"


def test_mining_your_own_field_learns_from_few_samples() -> None:
    text = run("01_mine_your_own_field.py", "--steps", "60")
    mined, plain = (numbers(rf"{name} step .*PSNR ([\d.]+) dB", text) for name in ("mined", "plain"))
    assert mined[0] == plain[0]
    assert mined[-1] > mined[0] + 5
    assert plain[-1] > plain[0] + 5
    assert abs(mined[-1] - plain[-1]) < 2
    mined_shares, plain_shares = (
        numbers(rf"{name} step .* ([\d.]+) of the samples", text) for name in ("mined", "plain")
    )
    assert max(mined_shares) < 0.6
    assert mined_shares[-1] < 0.3
    assert set(plain_shares) == {1.0}


def test_mining_a_dynamic_field_learns_and_reports_the_gradient_share() -> None:
    text = run("02_mine_a_dynamic_field.py", "--steps", "80")
    psnr = numbers(r"PSNR ([\d.]+) dB", text)
    assert psnr[-1] > psnr[0] + 3
    kept = numbers(r"hold ([\d.]+) of the gradient", text)
    assert kept[-1] > 0.9 > kept[0]
    assert all(share <= 0.5 for share in numbers(r"([\d.]+) of the samples", text))
    assert "occluded samples were chosen" in text


def test_a_program_for_nerfacc_and_tinycudann_trains_the_builtin_scene() -> None:
    text = run("03_nerfacc_and_tinycudann.py", "--steps", "60")
    losses = numbers(r"loss ([\d.]+)", text)
    assert losses[-1] < 0.6 * losses[0]
    # An empty picture scores 10 dB.
    assert numbers(r"PSNR ([\d.]+) dB", text)[0] > 14


def test_train_evaluate_and_render(tmp_path: Path) -> None:
    small = ("--steps", "60", "--downscale", "8", "--frames", "2", "--out", str(tmp_path))
    text = run("04_train_evaluate_render.py", "builtin", *small)
    # An empty picture scores 10 dB.
    assert numbers(r"PSNR ([\d.]+) dB", text)[0] > 14
    assert "step 60" in text
    assert picture(tmp_path / "above.png").shape == (150, 200, 3)
    first, second = picture(tmp_path / "orbit_00.png"), picture(tmp_path / "orbit_01.png")
    assert np.abs(first - second).mean() > 1


def test_own_photos_become_a_video(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="needs the extra `ingest`")
    pytest.importorskip("av", reason="needs the extra `video`")
    photos = ("--count", "16", "--size", "400", "--downscale", "4", "--steps", "60", "--frames", "4")
    text = run("05_own_photos.py", *photos, "--out", str(tmp_path))
    assert numbers(r"(\d+) of 16 photos have a pose", text)[0] >= 12
    # Before training a test photo, most of which is white, scores 3 dB.
    assert numbers(r"PSNR ([\d.]+) dB", text)[0] > 10
    assert count_frames(tmp_path / "orbit.mp4") == 4


def test_own_field(tmp_path: Path) -> None:
    small = ("--steps", "100", "--downscale", "8", "--side", "32")
    text = run("06_own_field.py", "builtin", *small, "--out", str(tmp_path))
    assert numbers(r"PSNR ([\d.]+) dB", text)[0] > 20
    assert picture(next((tmp_path / "scores" / "images").glob("*-sheet.png"))).size


def test_own_sampler(tmp_path: Path) -> None:
    text = run("07_own_sampler.py", "builtin", "--steps", "60", "--downscale", "8", "--out", str(tmp_path))
    own, base = numbers(r"PSNR ([\d.]+) dB", text)
    assert own > 14
    assert abs(own - base) < 4


def test_own_loss_removes_fog(tmp_path: Path) -> None:
    text = run("08_own_loss.py", "builtin", "--steps", "100", "--downscale", "8", "--out", str(tmp_path))
    assert min(numbers(r"PSNR ([\d.]+) dB", text)) > 14
    with_term, without = numbers(r"([\d.]+)% of the pixels", text)
    assert with_term < without


def test_a_scene_that_moves(tmp_path: Path) -> None:
    text = run("09_dynamic_scene.py", "--steps", "150", "--views", "80", "--out", str(tmp_path))
    dynamic, static = numbers(r"PSNR ([\d.]+) dB", text)
    assert dynamic > static
    first, later = (picture(tmp_path / f"time_{time}.png") for time in ("0.00", "0.50"))
    assert np.abs(first - later).mean() > 2, "nothing moved"


def test_exported_files_show_what_the_model_shows(tmp_path: Path) -> None:
    pytest.importorskip("trimesh", reason="needs the extra `mesh`")
    pytest.importorskip("xatlas", reason="needs the extra `mesh`")
    small = ("--steps", "150", "--downscale", "4", "--count", "3000", "--longest", "64")
    sizes = ("--faces", "3000", "--resolution", "48")
    run("10_export_and_look.py", "builtin", *small, *sizes, "--out", str(tmp_path))
    model, splats, mesh = np.split(picture(tmp_path / "compare.png") / 255, 3, axis=1)
    white = np.square(model - 1).mean()
    assert np.square(model - splats).mean() < 0.2 * white
    assert np.square(model - mesh).mean() < 0.5 * white


def test_several_processes_and_a_sweep(tmp_path: Path) -> None:
    small = ("--steps", "40", "--downscale", "8", "--out", str(tmp_path / "all"))
    text = run("11_processes_and_sweep.py", "builtin", *small)
    assert "two processes: status finished, step 40" in text
    scores = numbers(r": ([\d.]+) dB on held-out", text)
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert min(numbers(r"PSNR ([\d.]+) dB", text)) > 11


def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning", reason="needs the extra `lightning`")
    # Packages that Lightning imports warn about names of other packages that will end.
    small = ("--steps", "60", "--downscale", "8", "--out", str(tmp_path))
    text = run("12_lightning.py", "builtin", *small, warnings="default")
    psnr = numbers(r"PSNR ([\d.]+) dB", text)
    assert psnr[-1] > psnr[0] + 2
    picture(tmp_path / "view.png")
    assert (tmp_path / "last.ckpt").exists()


def test_the_notebook_runs_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = EXAMPLES / "first_steps.ipynb"
    assert path.stat().st_size < 200_000
    monkeypatch.chdir(tmp_path)
    printed = [notebook.text_of(outputs) for _, outputs in notebook.run(json.loads(path.read_text()))]
    psnr = [float(found) for text in printed for found in re.findall(r"([\d.]+) dB", text)]
    assert len(psnr) == 3
    assert min(psnr) > 24
    pictures = [each for cell in notebook.code_cells(json.loads(path.read_text())) for each in cell["outputs"]]
    assert sum("image/png" in each.get("data", ()) for each in pictures) == 4, "the notebook is stored with pictures"


class Net(torch.nn.Module):
    """[n, 3] positions, [n, 3] directions and, if asked for, [n] time -> [n, 4] pre-activations."""

    def __init__(self, inputs: int = 6) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3 * inputs, 48),
            torch.nn.ReLU(),
            torch.nn.Linear(48, 48),
            torch.nn.ReLU(),
            torch.nn.Linear(48, 4),
        )

    def forward(self, *parts: Tensor) -> Tensor:
        x = torch.cat([part.reshape(len(part), -1) for part in parts], 1)
        return self.layers(torch.cat((x, torch.sin(3 * x), torch.cos(3 * x)), 1))


def draw_rays(step: int, moving: bool) -> tuple[Rays, Tensor]:
    """Rays from around a ball of radius 0.6, and the colours they see; a moving ball goes from left to right."""
    rng = torch.Generator().manual_seed(step)
    origins = 2 * torch.nn.functional.normalize(torch.randn(RAYS, 3, generator=rng), dim=1)
    directions = torch.nn.functional.normalize(torch.rand(RAYS, 3, generator=rng) - 0.5 - origins, dim=1)
    time = torch.rand(RAYS, generator=rng)
    centre = torch.stack((time - 0.5, 0 * time, 0 * time), 1) if moving else torch.zeros(RAYS, 3)
    offset = origins - centre
    along = (offset * directions).sum(1)
    inside = along.square() - offset.square().sum(1) + 0.36
    normal = (offset + (-along - inside.clamp_min(0).sqrt())[:, None] * directions) / 0.6
    target = torch.where(inside[:, None] > 0, 0.5 + 0.5 * normal, 1.0)
    near, far = torch.full((RAYS,), NEAR), torch.full((RAYS,), FAR)
    return Rays(origins, directions, near, far, time if moving else None), target


def from_edges(edges: Tensor) -> Samples:
    """Intervals between neighbouring distances [R, K + 1]."""
    n, count = edges.shape[0], edges.shape[1] - 1
    ray_id = torch.arange(n).repeat_interleave(count)
    first, each = torch.arange(n) * count, torch.full((n,), count)
    return Samples(edges[:, :-1].reshape(-1), edges[:, 1:].reshape(-1), ray_id, first, each)


def query(rays: Rays, samples: Samples) -> tuple[Tensor, ...]:
    middle = (samples.t_start + samples.t_end) / 2
    directions = rays.directions[samples.ray_id]
    points = rays.origins[samples.ray_id] + middle[:, None] * directions
    return (points, directions) if rays.time is None else (points, directions, rays.time[samples.ray_id])


def density_of(raw: Tensor) -> Tensor:
    return (raw[:, 3] - 1).clamp_max(6).exp()


def render(raw: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
    """Colours [R, 3] over white, weights [B]."""
    out = composite(density_of(raw), raw[:, :3].sigmoid(), samples, torch.ones(samples.n_rays, 3))
    return out.colour, out.weights


Place = Callable[[Net, Rays, int], Samples]


def uniform_samples(net: Net, rays: Rays, step: int) -> Samples:
    jitter = torch.rand(len(rays), 1, generator=torch.Generator().manual_seed(step))
    return from_edges(NEAR + (torch.arange(33) + jitter) * ((FAR - NEAR) / 33))


@torch.no_grad()
def hierarchical_samples(net: Net, rays: Rays, step: int) -> Samples:
    """Sixteen coarse intervals, refined by sixteen distances drawn from the coarse weights."""
    edges = torch.linspace(NEAR, FAR, 17).expand(len(rays), 17)
    coarse = from_edges(edges)
    weights = render(net(*query(rays, coarse)), coarse)[1].reshape(len(rays), 16) + 1e-2
    share = torch.cat((torch.zeros(len(rays), 1), (weights / weights.sum(1, keepdim=True)).cumsum(1)), 1)
    wanted = ((torch.arange(16) + 0.5) / 16).expand(len(rays), 16).contiguous()
    cell = torch.searchsorted(share, wanted, right=True).clamp(1, 16) - 1
    low, high = share.gather(1, cell), share.gather(1, cell + 1)
    fine = edges.gather(1, cell) + (wanted - low) / (high - low) * ((FAR - NEAR) / 16)
    return from_edges(torch.cat((edges, fine), 1).sort(1).values)


def occupancy_samples() -> Place:
    """Samples from an occupancy grid that is updated from the field."""
    bounds = Bounds(low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))
    sampler = OccupancySampler(OccupancyConfig(resolution=16, step=0.06, every=8), bounds, torch.device("cpu"))

    def place(net: Net, rays: Rays, step: int) -> Samples:
        if sampler.due(step):
            with torch.no_grad():
                sampler.update(lambda points: density_of(net(points, torch.zeros_like(points))), 0, step)
        return sampler.sample(rays).samples

    return place


@pytest.mark.parametrize("config", [HardConfig(), HardConfig(draw="poisson"), PUBLISHED], ids=lambda c: c.draw)
@pytest.mark.parametrize(
    ("make", "moving"),
    [
        (lambda: uniform_samples, False),
        (lambda: uniform_samples, True),
        (lambda: hierarchical_samples, False),
        (lambda: hierarchical_samples, True),
        (occupancy_samples, False),
    ],
    ids=["uniform", "uniform with time", "hierarchical", "hierarchical with time", "occupancy"],
)
def test_mining_works_with_any_sampling(make: Callable[[], Place], moving: bool, config: HardConfig) -> None:
    torch.manual_seed(0)
    place, net, miner = make(), Net(7 if moving else 6), Miner(config, images=10)
    optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
    losses, marched, trained = [], 0, 0
    for step in range(80):
        rays, target = draw_rays(step, moving)
        samples = place(net, rays, step)

        def objective(raw: Tensor, samples: Samples = samples, target: Tensor = target) -> Tensor:
            return (render(raw, samples)[0] - target).square().mean()

        optimiser.zero_grad()
        mined = miner.backward(net, query(rays, samples), objective, step=step)
        assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())
        optimiser.step()
        losses.append(float(mined.loss))
        marched, trained = marched + len(samples), trained + len(mined.selection.index)
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert 0 < trained < 0.6 * marched
