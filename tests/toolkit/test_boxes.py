"""Ray-box intersection: by hand, against a plain loop, degenerate cases, and gradients."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raymine.errors import ConfigError
from raymine.toolkit.boxes import intersect
from support.paths import DOCS

CUBE = torch.tensor([[-1.0, -1, -1, 1, 1, 1]])
INF, NAN = math.inf, math.nan


def one(origin: list[float], direction: list[float], box: torch.Tensor = CUBE, **options: float):  # type: ignore[no-untyped-def]
    near, far, hit = intersect(torch.tensor([origin]), torch.tensor([direction]), box, **options)
    assert near.shape == far.shape == hit.shape == (1, len(box))
    return near.item(), far.item(), hit.item()


def test_intersect_matches_hand_computed_distances() -> None:
    """From (-3, 0, 0), x reaches -1 at t = 2 and 1 at t = 4; y = t / 4 stays inside that long, y = t / 2 until 2."""
    assert one([-3.0, 0, 0], [1.0, 0.25, 0]) == (2.0, 4.0, True)
    assert one([-3.0, 0, 0], [1.0, 0.5, 0]) == (2.0, 2.0, True)  # touches an edge
    assert one([-3.0, 0, 0], [1.0, 0.6, 0]) == (INF, INF, False)
    assert one([-3.0, 0, 0], [-1.0, 0.25, 0]) == (INF, INF, False)


def test_near_and_far_clip_the_intersection() -> None:
    ray = [-3.0, 0.0, 0.0], [1.0, 0.0, 0.0]
    assert one(*ray, near=3.0, far=3.5) == (3.0, 3.5, True)
    assert one(*ray, far=1.0, miss=-1.0) == (-1.0, -1.0, False)
    assert one(*ray, near=4.5) == (INF, INF, False)
    assert one([0.0, 0, 0], [0.0, 0, 2]) == (0.0, 0.5, True)  # origin inside; t is in units of the direction's length
    assert one([0.0, 0, 0], [0.0, 0, 2], near=-INF) == (-0.5, 0.5, True)


@pytest.mark.parametrize(
    ("origin", "direction", "box", "expected"),
    [
        ([-3, 1, 0], [1, 0, 0], [-1, -1, -1, 1, 1, 1], (2, 4)),  # along a face
        ([-3, 1.1, 0], [1, 0, 0], [-1, -1, -1, 1, 1, 1], None),
        ([-3, 1.1, 0], [1, -0.0, 0], [-1, -1, -1, 1, 1, 1], None),
        ([-3, 0, 0], [1, 0, 0], [0, -1, -1, 0, 1, 1], (3, 3)),  # no extent along x
        ([0, 0, -1], [0, 0, 1], [0, 0, 0, 0, 0, 0], (1, 1)),
        ([-3, 0, 0], [1, 0, 0], [1, -1, -1, -1, 1, 1], None),  # high < low
        ([0, 0, 0], [0, 0, 0], [-1, -1, -1, 1, 1, 1], None),
        ([0, NAN, 0], [1, 0, 0], [-1, -1, -1, 1, 1, 1], None),
        ([0, 0, 0], [1, NAN, 0], [-1, -1, -1, 1, 1, 1], None),
        ([0, 0, 0], [1, 0, 0], [-1, -1, -1, 1, NAN, 1], None),
        ([0, 0, 0], [1, 0, 0], [-INF, -INF, -INF, INF, INF, INF], (0, INF)),
    ],
)
def test_intersect_handles_degenerate_rays_and_boxes(
    origin: list[float], direction: list[float], box: list[float], expected: tuple[float, float]
) -> None:
    got = one([float(v) for v in origin], [float(v) for v in direction], torch.tensor([box], dtype=torch.float32))
    assert got == ((*expected, True) if expected else (INF, INF, False))


def loop(o: list[float], d: list[float], box: list[float]) -> tuple[float, float] | None:
    enter, leave = 0.0, INF
    for i in range(3):
        if d[i] == 0:
            if not box[i] <= o[i] <= box[i + 3]:
                return None
            continue
        a, b = sorted(((box[i] - o[i]) / d[i], (box[i + 3] - o[i]) / d[i]))
        enter, leave = max(enter, a), min(leave, b)
    return (enter, leave) if enter <= leave else None


number = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0])


@settings(max_examples=200, deadline=None)
@given(st.lists(number, min_size=3, max_size=3), st.lists(number, min_size=3, max_size=3))
def test_intersect_matches_plain_loop(origin: list[float], direction: list[float]) -> None:
    boxes = torch.tensor([[-1.0, -1, -1, 1, 1, 1], [0.0, -0.5, -2, 0.5, 0.5, 2], [-2.0, -2, -2, 0, 0, -0.5]])
    near, far, hit = intersect(torch.tensor([origin]), torch.tensor([direction]), boxes)
    for m, box in enumerate(boxes.tolist()):
        expected = loop(origin, direction, box) if any(direction) else None
        assert hit[0, m].item() == (expected is not None)
        if expected:
            assert (near[0, m].item(), far[0, m].item()) == pytest.approx(expected)
            for t in (near[0, m].item(), far[0, m].item()):
                at = [a + t * b for a, b in zip(origin, direction, strict=True)]
                assert all(box[i] - 1e-5 <= at[i] <= box[i + 3] + 1e-5 for i in range(3))


def test_intersect_passes_gradcheck() -> None:
    torch.manual_seed(0)
    origins = (torch.randn(6, 3, dtype=torch.float64) * 0.3 - 2).requires_grad_()
    directions = (torch.rand(6, 3, dtype=torch.float64) + 0.5).requires_grad_()
    boxes = torch.tensor([[-1.0, -1, -1, 1, 1, 1], [-0.9, -1.2, -1.1, 1.3, 1.1, 0.8]], dtype=torch.float64)
    boxes.requires_grad_()
    hit = intersect(origins, directions, boxes).hit
    assert hit.any()
    assert torch.autograd.gradcheck(
        lambda *x: tuple(part[hit] for part in intersect(*x)[:2]), (origins, directions, boxes)
    )
    parallel = torch.tensor([[0.0, 1.0, 0.0]], requires_grad=True)
    intersect(torch.zeros(1, 3), parallel, CUBE).t_far.sum().backward()
    assert parallel.grad is not None
    assert parallel.grad.tolist() == [[0.0, -1.0, 0.0]]


def test_empty_inputs_give_empty_results_and_wrong_shapes_raise() -> None:
    assert intersect(torch.zeros(0, 3), torch.zeros(0, 3), CUBE).hit.shape == (0, 1)
    assert intersect(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(0, 6)).hit.shape == (2, 0)
    for wrong in (
        (torch.zeros(3), torch.zeros(3), CUBE),
        (torch.zeros(2, 3), torch.zeros(1, 3), CUBE),
        (torch.zeros(2, 3), torch.zeros(2, 3), CUBE[0]),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), CUBE),
    ):
        with pytest.raises(ConfigError):
            intersect(*wrong)


@pytest.mark.parametrize("page", ["boxes", "occupancy", "lenses"])
def test_documentation_examples_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "toolkit" / f"{page}.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})
