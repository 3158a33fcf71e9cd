"""Every family of the toolkit gives the same results and gradients on CUDA as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from raymine.compat import nerfacc
from raymine.compat import tinycudann as tcnn
from raymine.toolkit import boxes, contraction, importance, lenses, losses, proposal, scan, volume
from raymine.toolkit.occupancy import OccupancyEstimator
from raymine.toolkit.pack import pack_counts, pack_ids
from support.device import forbidden_to_wait, requires_gpu

pytestmark = requires_gpu


def flat(out: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(out, Tensor):
        return [out]
    parts = out.values() if isinstance(out, dict) else out if isinstance(out, tuple | list) else ()
    return [tensor for part in parts for tensor in flat(part)]


def on_both(work: Callable[..., Any], *inputs: Tensor, bound: float = 1e-4) -> None:
    """Compare the tensors of `work` on the CPU and on CUDA, and the gradients of the inputs that require one."""
    results = []
    for device in ("cpu", "cuda"):
        own = [tensor.detach().to(device).requires_grad_(tensor.requires_grad) for tensor in inputs]
        found = flat(work(*own))
        sought = [tensor for tensor in own if tensor.requires_grad]
        total = sum(
            (part.double().square().sum() for part in found if part.requires_grad), torch.zeros((), device=device)
        )
        grads = torch.autograd.grad(total, sought, allow_unused=True) if total.requires_grad else ()
        results.append([part.detach().cpu() for part in (*found, *grads) if part is not None])
    assert len(results[0]) == len(results[1]) > 0
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        if ours.is_floating_point():
            scale = float(ours.nan_to_num(0, 0, 0).abs().max()) if ours.numel() else 0.0
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=bound * scale + 1e-7, equal_nan=True)
        else:
            assert torch.equal(ours, theirs)


def ragged(rays: int = 200) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """count [R], t_start, t_end, density [B]."""
    count = torch.randint(0, 70, (rays,))
    n = int(count.sum())
    t_start = torch.rand(n) * 3
    return count, t_start, t_start + torch.rand(n) * 0.1, (torch.rand(n) * 9).requires_grad_()


def test_packs_and_scans_match_cpu() -> None:
    count, _, _, values = ragged()
    on_both(lambda c: (pack_counts(c), pack_ids(pack_counts(c).ray_id(), len(c))), count)
    for exclusive in (False, True):
        on_both(lambda c, v, e=exclusive: scan.running_sum(v, pack_counts(c), exclusive=e), count, values)
        on_both(lambda c, v, e=exclusive: scan.running_product(v / 9, pack_counts(c), exclusive=e), count, values)


def test_volume_rendering_matches_cpu() -> None:
    count, t_start, t_end, density = ragged()
    colour = torch.rand(len(density), 3, requires_grad=True)

    def render(c: Tensor, a: Tensor, b: Tensor, s: Tensor, rgb: Tensor) -> Any:
        pack = pack_counts(c)
        found = volume.weights_from_density(a, b, s, pack)
        return (
            found,
            volume.weights_from_alpha(found.alphas, pack),
            volume.accumulate(found.weights, rgb, pack),
            volume.rendering(a, b, pack, rgb_sigma_fn=lambda *_: (rgb, s), background=torch.ones(3, device=a.device)),
        )

    on_both(render, count, t_start, t_end, density, colour)
    on_both(
        lambda c, a, b, s: volume.visible_from_density(a, b, s, pack_counts(c), stop=1e-3),
        count,
        t_start,
        t_end,
        density,
    )


def test_boxes_lenses_contraction_and_losses_match_cpu() -> None:
    origins, directions = torch.randn(300, 3), torch.nn.functional.normalize(torch.randn(300, 3), dim=1)
    on_both(
        lambda o, d: boxes.intersect(o, d, torch.tensor([[-1.0, -1, -1, 1, 1, 1]], device=o.device)),
        origins,
        directions,
    )
    points, lens = (torch.rand(200, 2) - 0.5).requires_grad_(), torch.tensor([0.05, -0.02, 0.001, -0.002])
    for work in (lenses.distort, lenses.undistort, lenses.distort_fisheye, lenses.undistort_fisheye):
        on_both(work, points, lens)
    far = (torch.randn(300, 3) * 4).requires_grad_()
    on_both(lambda x: (contraction.contract(x), contraction.uncontract(contraction.contract(x, "l2") * 0.9, "l2")), far)
    count, t_start, t_end, weights = ragged()
    on_both(lambda c, w, a, b: losses.distortion_loss(w, a, b, pack=pack_counts(c)), count, weights, t_start, t_end)


def test_importance_and_proposals_match_cpu() -> None:
    edges = torch.linspace(0, 1, 33).expand(50, 33).contiguous()
    cdfs = torch.cat((torch.zeros(50, 1), torch.rand(50, 32).cumsum(1)), 1)
    cdfs = cdfs / cdfs[:, -1:]
    on_both(lambda e, c: importance.importance_samples(e, c, 24)[:2], edges, cdfs)

    def propose(width: Tensor) -> Any:
        estimator = proposal.ProposalEstimator()
        span = proposal.RaySpan(
            torch.full((20,), 2.0, device=width.device), torch.full((20,), 6.0, device=width.device)
        )
        found = estimator.sample(
            [lambda a, b: 20 * torch.exp(-(((a + b) / 2 - 4) ** 2) / width)], [32], 16, span, requires_grad=True
        )
        return found[:2]

    on_both(propose, torch.tensor(0.1))


def test_occupancy_estimator_and_nerfacc_drop_in_match_cpu() -> None:
    origins = 2.5 * torch.nn.functional.normalize(torch.randn(200, 3), dim=1)
    directions = torch.nn.functional.normalize(torch.rand(200, 3) - 0.5 - origins, dim=1)
    occupied = torch.rand(1, 32, 32, 32) < 0.2
    box = [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
    counts: list[Tensor] = []
    for device in ("cpu", "cuda"):
        estimator = OccupancyEstimator(box, 32).to(device)
        estimator.binaries = occupied.to(device)
        counts.append(estimator.sampling(origins.to(device), directions.to(device), step=0.02).count.cpu())
        original = nerfacc.OccGridEstimator(torch.tensor(box), resolution=32).to(device)
        original.binaries = occupied.to(device)
        ids, _, _ = original.sampling(origins.to(device), directions.to(device), render_step_size=0.02)
        counts.append(torch.bincount(ids.cpu(), minlength=200))
    # Rounding may put a midpoint near a cell face on either side of it.
    for a, b in ((counts[0], counts[2]), (counts[1], counts[3])):
        assert int((a - b).abs().max()) <= 2
        assert abs(int(a.sum()) - int(b.sum())) <= 0.002 * int(a.sum()) + 2


def test_tinycudann_modules_match_cpu() -> None:
    network = {"otype": "FullyFusedMLP", "n_neurons": 64, "n_hidden_layers": 2, "activation": "ReLU"}
    grid = {"otype": "HashGrid", "n_levels": 8, "n_features_per_level": 4, "log2_hashmap_size": 12}
    tables = tcnn.Encoding(3, grid).params.numel()
    x = torch.rand(3000, 3)
    results = []
    for device in ("cpu", "cuda"):
        module = tcnn.NetworkWithInputEncoding(3, 5, grid, network).to(device)
        with torch.no_grad():
            module.params[-tables:] *= 3000  # initial values are too close to 0 to show errors
        points = x.to(device).requires_grad_()
        out = module(points)
        assert out.dtype == (torch.float16 if device == "cuda" else torch.float32)
        grads = torch.autograd.grad(out.float().square().sum(), (points, module.params))
        results.append([part.detach().float().cpu() for part in (out, *grads)])
    for ours, theirs in zip(*results, strict=True):
        assert float((ours - theirs).norm() / ours.norm()) < 3e-2


def test_packs_stay_on_cuda_and_are_made_without_waiting() -> None:
    count = torch.tensor([2, 0, 3, 0], device="cuda")
    ray_id = torch.tensor([0, 0, 2, 2, 2], device="cuda")
    with forbidden_to_wait():
        by_count, by_id = pack_counts(count), pack_ids(ray_id, 4)
        found = by_count.ray_id(5)
    for pack in (by_count, by_id):
        assert pack.first.is_cuda
        assert pack.count.is_cuda
        assert (pack.first.tolist(), pack.count.tolist()) == ([0, 2, 2, 5], [2, 0, 3, 0])
    for ids in (found, by_count.ray_id()):
        assert ids.is_cuda
        assert torch.equal(ids, ray_id)
