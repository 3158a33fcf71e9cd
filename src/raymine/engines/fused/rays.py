"""The rays of a step, drawn on the device: for the fused step, and for a plain step on CUDA."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from raymine.contracts import Rays
from raymine.engines.fused.images import DeviceImages, DevicePixels
from raymine.engines.fused.rotating_images import RotatingCells, RotatingImages, image_bytes
from raymine.kernels.judge.op import Wanted
from raymine.kernels.ngp_step.gpu_draw import draw
from raymine.kernels.philox.gpu import halves
from raymine.step import TrainData, TrainState
from raymine.step.batch import RayBatch, part_of_rays

_BLOCK = 64
"""Rays per program. There are few rays, and each makes several dependent look-ups: 256 take half as long again."""


class DeviceRays:
    """Images, cameras and image cells on the device of a state.

    It draws the same rays as `step.batch.draw_batch`; where images do not fit (`TrainConfig.image_memory`), from the
    part of them that is there. The cameras are the given ones until `follow` moves them.
    """

    def __init__(self, state: TrainState, data: TrainData) -> None:
        device = state.device
        self._given = self._rig = data.rig
        self._random = state.config.background == "random"
        self._pixels: DevicePixels | RotatingCells
        memory = state.config.image_memory
        if memory is None or image_bytes(data) <= memory:
            self.images: DeviceImages | RotatingImages = DeviceImages(data, device)
            self._pixels = DevicePixels(state.pixels, device)
        else:
            self.images = RotatingImages(data, state.pixels, state.seed, memory, device)
            self._pixels = self.images.cells
        self.seed = torch.tensor(halves(state.seed), dtype=torch.int32, device=device)
        self._now = torch.zeros(2, dtype=torch.int32, device=device)

    @property
    def waited(self) -> float:
        """Seconds in which the device had to wait for images."""
        return self.images.waited

    def follow(self, state: TrainState) -> None:
        """Have the cameras where the poses of the state are when they are no longer refined.

        They move in the memory that graphs read. Call it outside of a graph when the state may have changed.
        """
        rig = self._given if state.poses is None else state.poses.placed(self._given)
        if rig is not self._rig:
            self.images.place_cameras(rig.table)
            self._rig = rig

    def prepare(self, step: int) -> None:
        """Have the images of step `step` on the device. Call it before `fill`, outside of a graph."""
        self.images.prepare(step)

    def fill(
        self,
        n_rays: Tensor,
        step: Tensor,
        rays: Tensor,
        harmonics: Tensor,
        wanted: Tensor,
        jitter: Tensor,
        image: Tensor,
    ) -> None:
        """Draw the rays of step [1]: fills the first n_rays [1] rows of the last five arguments.

        rays [R, 8], harmonics [R, 16], wanted [R, 8], jitter [R] and image [R], which is `drawn` there, are as in
        `kernels.ngp_step.gpu_draw.draw`. Where images are bands (`RotatingImages`), so is `image`.
        """
        images, pixels = self.images, self._pixels
        opencv, fisheye = self._rig.lens_steps
        draw[(triton.cdiv(len(rays), _BLOCK),)](
            n_rays, self.seed, step, images.count, opencv, fisheye, images.pixels, images.masks, images.places,
            images.rig, images.background, *pixels.arguments, rays, harmonics, wanted, jitter, image,
            RANDOM=self._random, MASKED=images.masked, OPENCV=opencv > 0, FISHEYE=fisheye > 0, SCORED=pixels.scored,
            WEIGHED=pixels.weighed, BLOCK=_BLOCK, num_warps=2,
        )  # fmt: skip

    def batch(self, state: TrainState, data: TrainData) -> RayBatch:
        """As `draw_batch`, but the batch does not contain the pixels."""
        n, device = state.rays, state.device
        rays, wanted = torch.empty(n, 8, device=device), torch.empty(n, 8, device=device)
        harmonics = torch.empty(n, 16, dtype=torch.float16, device=device)
        self.follow(state)
        self.prepare(state.step)
        for place, number in zip(self._now, (n, state.step), strict=True):
            place.fill_(number)
        image = torch.empty(n, dtype=torch.int32, device=device)
        self.fill(self._now[:1], self._now[1:], rays, harmonics, wanted, torch.empty(n, device=device), image)
        origins, directions, near, far = (part.contiguous() for part in rays.split((3, 3, 1, 1), 1))
        colour, background, weight, time = (part.contiguous() for part in wanted.split((3, 3, 1, 1), 1))
        when = time[:, 0] if self._rig.dynamic else None
        drawn, part = Rays(origins, directions, near[:, 0], far[:, 0], when), part_of_rays(state)
        # Drawing all rays costs a few microseconds; only those of this rank are trained on.
        own = slice(0, n) if part is None else slice(part.start, part.stop)
        seen, own_image = drawn.slice(own.start, own.stop), image[own].long()
        if state.poses is not None and state.refining:
            seen = state.poses.refine(seen, own_image)
        return RayBatch(None, seen, Wanted(colour[own], background[own], weight[own, 0]), own_image, part=part)
