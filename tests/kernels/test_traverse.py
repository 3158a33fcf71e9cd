"""Grid traversal: rays by hand, rays without samples, errors, and every backend against the reference."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numba
import pytest
import torch
from torch import Tensor

from raymine.compat.nerfacc.grid import ray_aabb_intersect, traverse_grids
from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.traverse import cpu, reference
from raymine.kernels.traverse.op import Crossings, Grids, Stride, Traversed, traverse
from support.device import TRITON_DEVICE, requires_gpu

BACKENDS: list[dispatch.Backend] = ["reference", "cpu", "gpu"]
CUBE = torch.tensor([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
STRIDES = [
    Stride(0.11),
    Stride(0.05, limit=7),
    Stride(0.04, 0.03),
    Stride(0.11, 0.4, 5),
    Stride(0.0),
    Stride(-1.0, 0.1, 3),
]

# Divisions by zero are masked afterwards; Triton's interpreter warns about them.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("poisoned")]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> dispatch.Backend:
    if request.param == "gpu":
        pytest.importorskip("triton")
    return request.param


def moved(arguments: tuple, device: str) -> tuple:  # type: ignore[type-arg]
    """The arguments of `traverse` on a device."""

    def move(x):  # type: ignore[no-untyped-def]
        if isinstance(x, tuple) and not isinstance(x, Stride):
            parts = [move(part) for part in x]
            return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
        return x.to(device) if isinstance(x, Tensor) else x

    return tuple(move(x) for x in arguments)


def walk(backend: dispatch.Backend, *arguments) -> Traversed:  # type: ignore[no-untyped-def]
    """Traverse on the device of the backend; the result is on the CPU."""
    with dispatch.force(backend):
        found = traverse(*moved(arguments, TRITON_DEVICE if backend == "gpu" else "cpu"))
    return Traversed(found.samples.to("cpu"), *moved(found[1:], "cpu"))


def tensors(found: Traversed) -> list[Tensor]:
    return [*vars(found.samples).values(), found.joined, found.end, found.edges]


def nested(levels: int, base: Tensor = CUBE) -> Tensor:
    return torch.stack([base * 2**level for level in range(levels)])


def bundle(n: int, spread: float = 1.5) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Random rays and their bounds; with more than 6 rays, some are parallel to axes."""
    directions = torch.nn.functional.normalize(torch.randn(n, 3), dim=-1)
    if n > 6:
        directions[:6] = torch.cat((torch.eye(3), -torch.eye(3)))
        directions[6, 0] = 0
    return torch.randn(n, 3) * spread, directions, (torch.rand(n) * 0.5, 1 + torch.rand(n) * 6)


def agree(got: Traversed, expected: Traversed, near: float = 1e-4) -> None:
    """Compare two traversals. Rounding may put a midpoint near a cell face on either side of it, which may change one
    ray in a hundred."""
    a, b = got.samples, expected.samples
    same = (a.count == b.count) & (got.edges == expected.edges)
    assert int((~same).sum()) <= b.n_rays // 100
    assert got.n_edges == int(got.edges.sum())
    assert torch.equal(a.first, a.count.cumsum(0) - a.count)
    assert torch.equal(a.ray_id, a.pack.ray_id())
    mine, theirs = same[a.ray_id], same[b.ray_id]
    assert torch.equal(got.joined[mine], expected.joined[theirs])
    for name in ("t_start", "t_end"):
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype
        assert torch.allclose(x[mine], y[theirs], atol=near, rtol=0), name
    assert torch.allclose(got.end[same], expected.end[same], atol=near, rtol=0, equal_nan=True)


def along_x(x: float, near: float = 0.0, far: float = math.inf) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    return torch.tensor([[x, -0.5, -0.5]]), torch.tensor([[1.0, 0, 0]]), (torch.tensor([near]), torch.tensor([far]))


def test_even_steps_match_hand_computation(backend: dispatch.Backend) -> None:
    """2 x 2 x 2 cells of side 1; from x = -2 the ray is in an occupied cell for t in 1 .. 2, in an empty one for t in
    2 .. 3. Steps of 0.4 from 0.1 have midpoints 0.3, 0.7, 1.1, 1.5, 1.9, 2.3, 2.7; the next, 3.1, is outside."""
    full = torch.zeros(1, 2, 2, 2, dtype=torch.bool)
    full[0, 0, 0, 0] = True
    found = walk(backend, *along_x(-2.0, 0.1), Grids(full, CUBE[None]), Stride(0.4))
    assert found.samples.t_start.tolist() == pytest.approx([0.9, 1.3, 1.7])
    assert found.samples.t_end.tolist() == pytest.approx([1.3, 1.7, 2.1])
    assert found.joined.tolist() == [False, True, True]
    assert (found.samples.count.tolist(), found.edges.tolist(), found.n_edges) == ([3], [4], 4)
    assert found.end.tolist() == pytest.approx([2.9])


@pytest.mark.parametrize("limit", [0, 3, 4])
def test_growing_steps_match_hand_computation(backend: dispatch.Backend, limit: int) -> None:
    """Two cells, t in 1 .. 5 (occupied) and 5 .. 9 (empty). Steps of half the distance: 1, 1.5, 2.25, 3.375, 5.0625,
    where the next midpoint would be 6.3. The steps across the empty cell keep the length 5.0625 / 2: two of them."""
    full = torch.tensor([True, False]).view(1, 2, 1, 1)
    box = torch.tensor([[1.0, -1.0, -1.0, 9.0, 1.0, 1.0]])
    found = walk(backend, *along_x(0.0, 1.0), Grids(full, box), Stride(0.5, 0.5, limit))
    edges = [1.0, 1.5, 2.25, 3.375, 5.0625]
    last = limit or 4
    assert found.samples.t_start.tolist() == pytest.approx(edges[:last])
    assert found.samples.t_end.tolist() == pytest.approx(edges[1 : last + 1])
    assert found.edges.tolist() == [last + 1]
    # With a limit it stops where the last sample ends.
    assert found.end.tolist() == pytest.approx([edges[last] if limit else 10.125])


def test_one_sample_per_cell_matches_hand_computation(backend: dispatch.Backend) -> None:
    """The outer box from x = -2 to the inner one at -1, two inner cells, an empty outer cell; then another box."""
    full = torch.ones(3, 2, 2, 2, dtype=torch.bool)
    full[1, 1, 0, 0] = False
    boxes = torch.cat((nested(2), torch.tensor([[3.0, -2, -2, 5, 2, 2]])))
    found = walk(backend, *along_x(-3.0), Grids(full, boxes), Stride(0.0))
    assert found.samples.t_start.tolist() == pytest.approx([1, 2, 3, 6, 7])
    assert found.samples.t_end.tolist() == pytest.approx([2, 3, 4, 7, 8])
    assert found.joined.tolist() == [False, True, True, False, True]
    assert (found.edges.tolist(), found.end.tolist()) == ([7], [8.0])


@pytest.mark.parametrize("stride", STRIDES, ids=lambda s: "-".join(f"{x:g}" for x in s))
@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize(("backend", "n"), [*(("cpu", n) for n in (0, 1, 63, 400)), *(("gpu", n) for n in (0, 1, 40))])
def test_kernels_match_reference(backend: dispatch.Backend, n: int, levels: int, stride: Stride) -> None:
    if backend == "gpu":
        pytest.importorskip("triton")
    torch.manual_seed(n + levels)
    sides = (6, 3, 5) if backend == "gpu" else (16, 9, 20)
    # Boxes of random corners may overlap; a few rays have far before near.
    low = -torch.rand(levels, 3) - 0.3
    grids = Grids(torch.rand(levels, *sides) < 0.4, torch.cat((low, low + torch.rand(levels, 3) * 2 + 0.5), -1))
    if n % 2:
        grids = Grids(grids.binaries, nested(levels))
    arguments = (*bundle(n), grids, stride, torch.rand(n) < 0.8)
    arguments[2][1][:2] = 0
    agree(walk(backend, *arguments), walk("reference", *arguments))


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", [torch.float64, torch.float16], ids=str)
def test_other_dtypes_and_non_contiguous_inputs_match_reference(backend: dispatch.Backend, kind: torch.dtype) -> None:
    if backend == "gpu":
        pytest.importorskip("triton")
    torch.manual_seed(3)
    full = (torch.rand(5, 4, 3, 2) < 0.5).permute(3, 0, 1, 2)
    origins, directions, (near, far) = bundle(20)
    origins, directions = (x.to(kind).t().contiguous().t() for x in (origins, directions))
    arguments = (origins, directions, (near.to(kind), far.to(kind)), Grids(full, nested(2)), Stride(0.07, 0.01))
    found = walk(backend, *arguments)
    assert found.samples.t_start.dtype == found.end.dtype == kind
    agree(found, walk("reference", *arguments), 1e-9 if kind == torch.float64 else 1e-2)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_more_boxes_than_a_kernel_sorts_match_reference(backend: dispatch.Backend) -> None:
    if backend == "gpu":
        pytest.importorskip("triton")
    torch.manual_seed(4)
    low = torch.randn(11, 3)
    grids = Grids(torch.rand(11, 2, 2, 2) < 0.5, torch.cat((low, low + torch.rand(11, 3) + 0.3), -1))
    arguments = (*bundle(20, 3.0), grids, Stride(0.1))
    agree(walk(backend, *arguments), walk("reference", *arguments))


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_own_box_crossings_equal_given_reference_crossings(backend: dispatch.Backend) -> None:
    """They are equal bit for bit, since both compute in the same order. Given crossings are used unchanged."""
    if backend == "gpu":
        pytest.importorskip("triton")
    torch.manual_seed(5)
    low = -torch.rand(4, 3) - 0.2
    boxes = torch.cat((low, low + torch.rand(4, 3) + 1), -1)
    boxes[1, 3] = boxes[1, 0]  # no extent along x
    boxes[2, 4] = boxes[2, 1] - 1  # high below low
    origins, directions, bounds = bundle(40, 1.0)
    known = reference.cross(origins, directions, boxes)
    enter, leave, hits = ray_aabb_intersect(origins, directions, boxes)
    assert torch.equal(known.hits, hits)
    assert torch.equal(known.t_sorted, torch.cat((enter, leave), -1).sort(-1).values)
    assert hits.any(0).tolist() == [True, True, False, True]
    grids, stride = Grids(torch.ones(4, 2, 2, 2, dtype=torch.bool), boxes), Stride(0.1)
    own = walk(backend, origins, directions, bounds, grids, stride)
    given = walk(backend, origins, directions, bounds, grids, stride, None, known)
    for a, b in zip(tensors(own), tensors(given), strict=True):
        assert torch.equal(a, b)
    missed = known._replace(hits=torch.zeros_like(known.hits))
    assert len(walk(backend, origins, directions, bounds, grids, stride, None, missed).samples) == 0
    # Unsorted, out-of-box and NaN crossings give the same result as in the reference.
    odd = Crossings(known.t_sorted.roll(1, 1) * 1.5, known.t_indices, torch.ones_like(known.hits))
    odd.t_sorted[::7] = torch.nan
    agree(
        walk(backend, origins, directions, bounds, grids, stride, None, odd),
        walk("reference", origins, directions, bounds, grids, stride, None, odd),
    )


@pytest.mark.parametrize("stride", [Stride(0.1), Stride(0.1, 0.02), Stride(0.0)], ids=["even", "cone", "cells"])
def test_invalid_or_masked_rays_end_at_their_near_plane(backend: dispatch.Backend, stride: Stride) -> None:
    nan, inf = math.nan, math.inf
    origins = torch.tensor([[0.0, 0, 0]] * 4 + [[nan, 0, 0], [inf, 0, 0], [5.0, 5, 5]] + [[0.0, 0, 0]] * 5)
    directions = torch.tensor([[1.0, 0, 0]] * 12)
    directions[1], directions[2], directions[3, 1] = 0, nan, inf
    near, far = torch.full((12,), 0.25), torch.full((12,), 9.0)
    near[7], near[8], far[9], far[10] = nan, inf, nan, 0.1
    mask = torch.ones(12, dtype=torch.bool)
    mask[11] = False
    grids = Grids(torch.ones(1, 2, 2, 2, dtype=torch.bool), CUBE[None])
    found = walk(backend, origins, directions, (near, far), grids, stride, mask)
    assert (found.samples.count > 0).tolist() == [True] + [False] * 11
    assert torch.equal(found.end[1:], near[1:]) or torch.allclose(found.end[1:], near[1:], equal_nan=True)
    assert not found.edges[1:].any()


def test_empty_grids_boxes_or_rays_give_no_samples(backend: dispatch.Backend) -> None:
    some, none = torch.ones(1, 2, 2, 2, dtype=torch.bool), torch.zeros(1, 2, 2, 2, dtype=torch.bool)
    for n, full, boxes in (
        (0, some, CUBE[None]),
        (7, none, CUBE[None]),
        (7, some, CUBE[None] + 50),
        (7, some, torch.tensor([[0.0, -1, -1, 0, 1, 1]])),
        (7, some, -CUBE[None]),
        (7, some, torch.full((1, 6), torch.nan)),
        (7, some[:0], CUBE[None][:0]),
        (7, some[:, :0], CUBE[None]),
    ):
        found = walk(backend, *bundle(n, 0.3), Grids(full, boxes), Stride(0.1))
        samples = found.samples
        for part in (samples.ray_id, samples.t_start, samples.t_end, found.joined):
            assert part.shape == (0,)
        assert (samples.ray_id.dtype, samples.t_start.dtype, found.joined.dtype) == (
            torch.int64,
            torch.float32,
            torch.bool,
        )
        assert samples.first.tolist() == samples.count.tolist() == found.edges.tolist() == [0] * n
        assert found.end.shape == (n,)
        assert found.n_edges == 0


def test_infinite_box_is_refused_or_gives_finite_ends(
    backend: dispatch.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA boxes are not read, since that would wait. Cell planes are undefined then, but walks must end."""
    box = torch.tensor([[-torch.inf, -1, -1, 1, torch.inf, 1]])
    if backend != "gpu":
        with pytest.raises(ConfigError, match="`aabbs` must not be infinite"):
            walk(backend, *bundle(9), Grids(torch.ones(1, 2, 2, 2, dtype=torch.bool), box), Stride(0.2))
        return
    monkeypatch.setattr(checks, "readable", lambda _: False)  # the interpreter's tensors are on the CPU
    found = walk(backend, *bundle(9), Grids(torch.ones(1, 2, 2, 2, dtype=torch.bool), box), Stride(0.2))
    assert found.end.isfinite().all()


def test_too_many_samples_per_ray_raise_unless_limited(backend: dispatch.Backend) -> None:
    grids = Grids(torch.ones(1, 2, 2, 2, dtype=torch.bool), CUBE[None])
    with pytest.raises(ConfigError, match=r"steps of 1e-09 give a ray more than 16777216 samples\. Take longer"):
        walk(backend, *along_x(-2.0), grids, Stride(1e-9))
    # With a limit only that many samples are computed.
    assert len(walk(backend, *along_x(-2.0), grids, Stride(1e-9, limit=4)).samples) == 4


def test_nerfacc_drop_in_gives_the_same_edges_on_every_backend(backend: dispatch.Backend) -> None:
    torch.manual_seed(6)
    origins, directions, (near, far) = bundle(30)
    arguments = (origins, directions, torch.rand(2, 4, 4, 4) < 0.5, nested(2), near, far)
    results = []
    for name in ("reference", backend):
        with dispatch.force(name):  # type: ignore[arg-type]
            device = TRITON_DEVICE if name == "gpu" else "cpu"
            mask = (torch.arange(30) % 3 > 0).to(device)
            whole = traverse_grids(*moved(arguments, device), 0.1, 0.05)
            spread = traverse_grids(*moved(arguments, device), 0.1, 0.05, 5, True, mask)
            unmasked = traverse_grids(*moved(arguments, device), 0.1, 0.05, 5, True)
            results.append((*whole, *spread, *unmasked))
    for expected, got in zip(*results, strict=True):
        if isinstance(expected, Tensor):
            assert torch.allclose(got.cpu(), expected, atol=1e-4)
            continue
        assert torch.allclose(got.vals.cpu(), expected.vals, atol=1e-4)
        for name in ("packed_info", "ray_indices", "is_left", "is_right", "is_valid"):
            if getattr(expected, name, None) is not None:
                assert torch.equal(getattr(got, name).cpu(), getattr(expected, name)), name


def test_results_do_not_depend_on_threads_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    arguments = (*bundle(700), Grids(torch.rand(2, 8, 8, 8) < 0.4, nested(2)), Stride(0.03, 0.01))
    results = [walk("cpu", *arguments)]
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    try:
        results.append(walk("cpu", *arguments))
    finally:
        numba.set_num_threads(1)
    monkeypatch.setattr(cpu, "_RUNS", 5000)
    results.append(walk("cpu", *arguments))
    for other in results[1:]:
        assert other.n_edges == results[0].n_edges
        for a, b in zip(tensors(results[0]), tensors(other), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"far": torch.ones(3)}, r"`far` must have shape \[2\], got \[3\]"),
        ({"directions": torch.ones(2, 2)}, r"`directions` must have shape \[2, 3\], got \[2, 2\]"),
        ({"near": torch.ones(2, dtype=torch.int64)}, "`near` must be floating point, got torch.int64"),
        ({"aabbs": torch.ones(2, 6)}, r"aabbs \[m, 6\], got \[1, 2, 2, 2\] and \[2, 6\]"),
        ({"mask": torch.ones(1, dtype=torch.bool)}, r"`mask` must have shape \[2\]"),
        ({"hits": torch.ones(2, 2)}, r"`hits` must have shape \[2, 1\]"),
        ({"cone": -1.0}, "`cone_angle` 0 or more; got 0.1 and -1.0"),
        ({"cone": math.nan}, "`cone_angle` must be finite, .* got 0.1 and nan"),
        ({"origins": torch.ones(2, 3, device="meta")}, "`origins` is on meta but the grids are on cpu"),
    ],
)
def test_invalid_arguments_raise_config_error(change: dict[str, Tensor | float], words: str) -> None:
    ones = torch.ones(2, 3)
    given = {
        "origins": ones, "directions": ones, "near": ones[:, 0], "far": ones[:, 0], "aabbs": CUBE[None], "cone": 0.0,
        "mask": None, "hits": torch.ones(2, 1, dtype=torch.bool), **change,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=words):
        traverse(
            given["origins"],  # type: ignore[arg-type]
            given["directions"],  # type: ignore[arg-type]
            (given["near"], given["far"]),  # type: ignore[arg-type]
            Grids(torch.ones(1, 2, 2, 2, dtype=torch.bool), given["aabbs"]),  # type: ignore[arg-type]
            Stride(0.1, given["cone"]),  # type: ignore[arg-type]
            given["mask"],  # type: ignore[arg-type]
            Crossings(torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.int64), given["hits"]),  # type: ignore[arg-type]
        )


def waits_of(call: Callable[[], object]) -> int:
    """Number of times that a call synchronizes with the device."""
    call()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in seen)


@requires_gpu
@pytest.mark.parametrize("stride", STRIDES, ids=lambda s: "-".join(f"{x:g}" for x in s))
def test_cuda_traversal_synchronizes_once_and_matches_cpu(stride: Stride) -> None:
    torch.manual_seed(8)
    arguments = (*bundle(20000), Grids(torch.rand(3, 32, 32, 32) < 0.2, nested(3)), stride)
    agree(walk("gpu", *arguments), walk("cpu", *arguments))
    origins, directions, (near, far), grids, _ = there = moved(arguments, "cuda")
    assert waits_of(lambda: traverse(*there)) == 1
    rest = near, far, stride.step_size, stride.cone_angle, stride.limit
    assert waits_of(lambda: traverse_grids(origins, directions, *grids, *rest)) == 1
    if stride.limit > 0:
        assert waits_of(lambda: traverse_grids(origins, directions, *grids, *rest, over_allocate=True)) == 1
