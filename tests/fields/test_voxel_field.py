"""The grid of voxels: values, growing and pruning in place, variation, errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine.contracts import Bounds, Draws, FieldInput, HasVariation, PreparesField
from raymine.errors import ConfigError
from raymine.fields.voxel_field import EMPTY, VoxelField, VoxelFieldConfig

BOX = Bounds(low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))
SMALL = VoxelFieldConfig(resolutions=(5, 9), grow_at=(10,), prune_at=(4,), rows=700, variation_rows=400)


def at_step(step: int, horizon: int = 0) -> Draws:
    return Draws(0, step, torch.device("cpu"), horizon=horizon)


def with_ball(config: VoxelFieldConfig = SMALL) -> VoxelField:
    """A field whose density falls from 8 at the centre to -16 at the corners, with a colour that follows x."""
    field = VoxelField(config, BOX)
    used = field.vertices[field.vertices >= 0].long()
    side = field.resolution
    place = torch.stack((used // side**2, used // side % side, used % side), -1) / (side - 1) * 2 - 1
    with torch.no_grad():
        field.densities[: len(used), 0] = 8 - 14 * place.norm(dim=-1)
        field.colours[: len(used), 0] = place[:, 0]
    return field


def queries(n: int = 50) -> FieldInput:
    directions = torch.nn.functional.normalize(torch.randn(n, 3), dim=-1)
    return FieldInput(torch.rand(n, 3) * 2 - 1, directions)


def test_new_field_is_even_and_grey() -> None:
    out = VoxelField(SMALL, BOX).forward(queries())
    assert torch.allclose(out.density, torch.full((50,), SMALL.start))
    assert out.colour.abs().max().item() == 0.0


def test_colour_is_the_spherical_harmonics_of_the_direction() -> None:
    field, query = VoxelField(SMALL, BOX), queries()
    with torch.no_grad():
        field.colours[:, 2] = 1.0  # the red coefficient of z, Y_10 = sqrt(3 / 4 pi) z
    out = field.forward(query)
    assert torch.allclose(out.colour[:, 0], 0.4886025 * query.directions[:, 2], atol=1e-5)
    assert torch.equal(field.density(query.positions), out.density)


def test_growing_keeps_values_where_something_is_and_shapes_everywhere() -> None:
    field = with_ball()
    shapes = {name: value.shape for name, value in field.state_dict().items()}
    # Between the fine vertices at -0.25 and 0.25, all of which have matter near them. Those at 0.5 do not, in corners.
    centre = torch.rand(100, 3) * 0.5 - 0.25
    before = field.density(centre)
    assert isinstance(field, PreparesField)
    assert field.before_step(at_step(9)) is None
    moved = field.before_step(at_step(10))
    assert moved is not None
    assert field.resolution == 9
    assert {name: value.shape for name, value in field.state_dict().items()} == shapes
    assert torch.allclose(field.density(centre), before, atol=1e-4)
    used = int((field.vertices >= 0).sum())
    assert 100 < used < 9**3
    # What is far from everything has no vertices any more.
    assert field.density(torch.tensor([[-0.99, -0.99, -0.99]])).item() == pytest.approx(EMPTY)
    # The finer vertex in the middle was the coarser vertex in the middle.
    middle = int(field.index[(4 * 9 + 4) * 9 + 4])
    assert int(moved["densities"][middle]) == (2 * 5 + 2) * 5 + 2
    assert field.before_step(at_step(10)) is None, "growing twice"


def test_pruning_moves_rows_and_says_where_from() -> None:
    field = with_ball()
    before, points = field.densities.detach().clone(), torch.rand(100, 3) * 0.6 - 0.3
    density = field.density(points)
    moved = field.before_step(at_step(4))
    assert moved is not None
    source = moved["colours"]
    kept = int((source >= 0).sum())
    assert 8 <= kept < 125
    assert torch.equal(field.densities[:kept], before[source[:kept]])
    assert int((field.vertices >= 0).sum()) == kept
    assert torch.allclose(field.density(points), density)


def test_field_that_has_learnt_nothing_keeps_its_vertices() -> None:
    field = VoxelField(replace(SMALL, rows=800, start=-9.0), BOX)
    field.before_step(at_step(4))
    assert int((field.vertices >= 0).sum()) == 5**3
    field.before_step(at_step(10))
    assert int((field.vertices >= 0).sum()) == 9**3


def test_no_points_give_no_outputs() -> None:
    assert VoxelField(SMALL, BOX).forward(queries(0)).colour.shape == (0, 3)


def test_without_room_the_grid_becomes_as_fine_as_rows_allow(caplog: pytest.LogCaptureFixture) -> None:
    field = with_ball(replace(SMALL, rows=300))
    points = torch.rand(200, 3) * 2 - 1
    before = field.density(points)
    moved = field.before_step(at_step(10))
    assert moved is not None
    assert 5 < field.resolution < 9
    assert 125 < int((field.vertices >= 0).sum()) <= 300
    # Nothing that is dense enough to matter was dropped.
    dense = before > 0
    assert int(dense.sum()) > 5
    assert (field.density(points)[dense] > -3).all()
    assert caplog.text.count("needs 604 rows, and there are 300") == 1
    # It tries again now and then, and becomes finest once there is room.
    assert field.before_step(at_step(13)) is None
    with torch.no_grad():
        field.densities[:, 0] = torch.where(field.densities[:, 0] > 5, field.densities[:, 0], EMPTY)
    assert field.before_step(at_step(16)) is not None
    assert field.resolution == 9
    assert len(caplog.records) == 1


def test_without_any_room_the_grid_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    field = with_ball(replace(SMALL, rows=130))
    before = field.densities.detach().clone()
    assert field.before_step(at_step(10)) is None
    assert field.before_step(at_step(16)) is None
    assert (field.resolution, len(caplog.records)) == (5, 1)
    assert torch.equal(field.densities, before)


def test_grid_that_has_learnt_nothing_loses_nothing_when_rows_are_few() -> None:
    field = VoxelField(replace(SMALL, rows=250), BOX)
    with torch.no_grad():
        field.densities -= 3.0
    assert field.before_step(at_step(10)) is not None
    assert field.resolution == 6, "6^3 vertices fit into 250 rows, and 7^3 do not"
    assert torch.allclose(field.density(torch.rand(100, 3) * 2 - 1), torch.tensor(SMALL.start - 3.0))


def test_grid_grows_at_shares_of_the_run() -> None:
    shares = replace(SMALL, grow_at=(0.25,))
    assert shares.moments(40) == (10,)
    assert shares.moments(0) == ()
    assert SMALL.moments(40) == (10,)

    def grown(horizon: int, steps: range) -> int | None:
        field = with_ball(shares)
        return next((n for n in steps if field.before_step(at_step(n, horizon)) and field.resolution == 9), None)

    assert grown(40, range(60)) == 10
    assert grown(100, range(60)) == 25
    # The horizon was estimated anew, and the moment lies behind: the next sixteenth step.
    assert grown(40, range(17, 60)) == 32
    assert grown(0, range(60)) is None


def test_run_that_ends_before_the_grid_is_finest_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    field = with_ball()
    for step in range(9):
        field.before_step(at_step(step, 9))
    assert [record.getMessage() for record in caplog.records] == [
        "The grid becomes finest, 9^3, at step 10, and this run has about 9: it stays coarser."
    ]
    field = with_ball()
    for step in range(9):
        field.before_step(at_step(step, 20_000 if step == 0 else 18))
    assert len(caplog.records) == 1


def test_restored_field_finds_its_rows_again() -> None:
    field, other = with_ball(), VoxelField(SMALL, BOX)
    field.before_step(at_step(10))
    other.load_state_dict(field.state_dict())
    other.restored(field.scalars())
    query = queries()
    assert torch.equal(other.forward(query).density, field.forward(query).density)
    assert torch.equal(other.index, field.index)


def test_variation_is_that_of_neighbours_and_ignores_unused_rows() -> None:
    field = VoxelField(replace(SMALL, resolutions=(2,), grow_at=(), rows=20, variation_rows=20), BOX)
    assert isinstance(field, HasVariation)
    assert field.variation(0).item() == 0.0
    with torch.no_grad():
        field.densities[0] += 2.0  # 3 of the 12 edges of a cell
        field.colours[10:] = 5.0  # rows of no vertex
    assert field.variation(3).item() == pytest.approx(SMALL.density_variation * 3 * 4.0 / 12)
    assert field.variation(torch.tensor(3)).item() == field.variation(3).item()
    field.variation(0).backward()
    assert field.densities.grad is not None
    assert float(field.densities.grad.to_dense()[0]) > 0


def test_unbounded_scenes_and_wrong_configs_are_refused() -> None:
    with pytest.raises(ConfigError, match="voxels needs a box"):
        VoxelField(SMALL, replace(BOX, levels=2))
    for changes in (
        {"resolutions": (9, 5)}, {"grow_at": ()}, {"rows": 100}, {"degree": 4}, {"threshold": 0.0}, {"prune_at": (0,)},
        {"grow_at": (1.5,)}, {"grow_at": (0.0,)}, {"grow_at": (1.0, 0.5)},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            replace(SMALL, **changes)  # type: ignore[arg-type]
    field = VoxelField(SMALL, BOX)
    numbers = sum(value.numel() for value in field.parameters())
    assert SMALL.memory(BOX).fixed >= 16 * numbers
