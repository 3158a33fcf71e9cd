"""The probe on a GPU: it must use the occupancy grid that the fused engine has trained."""

from __future__ import annotations

import torch

from raymine.bench.probe import next_batch, probe
from raymine.samplers import OccupancySampler
from raymine.step import create_state
from support.device import requires_gpu
from support.fused import CONFIG, DEVICE, trainer_for


@requires_gpu
def test_probe_marches_the_grid_that_the_fused_engine_has_trained() -> None:
    trainer = trainer_for()
    state, data = trainer.state, trainer.data
    while state.step < 40:
        trainer.advance(4)
    assert state.sampler.swept
    restored = create_state(CONFIG, data, seed=state.seed, device=DEVICE)
    restored.restore(state.tensors(), state.scalars())
    seen, expected = next_batch(state, data), next_batch(restored, data)
    untrained = OccupancySampler(CONFIG.sampler, data.bounds, DEVICE).sample(expected.rays).samples
    assert len(expected.samples) < len(untrained), "some cells must be empty, or the test shows nothing"
    for name in ("t_start", "t_end", "ray_id", "first", "count"):
        assert torch.equal(getattr(seen.samples, name), getattr(expected.samples, name)), name
    assert probe(state, data).diagnosis.samples == len(expected.samples)
