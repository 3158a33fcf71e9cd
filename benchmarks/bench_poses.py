"""What wrong poses do to hard sample mining, which guard helps, and how well pose refinement recovers them.

    python benchmarks/bench_poses.py SCENE --downscale 4 --seconds 60 --share 0.1 --degrees 3
    python benchmarks/bench_poses.py SCENE --downscale 2 --seconds 60 --perturb-degrees 1 --perturb-distance 0.01
    python benchmarks/bench_poses.py builtin --guard --steps 800

The first form turns some training cameras about random axes through the centre of the scene, trains with each policy
for the same time and evaluates on test views, whose poses are right. The second turns every training camera about a
random axis through its own centre, moves it in a random direction by a share of the scale of the scene, and trains
three times with each policy: with the right poses, with the wrong ones, and with the wrong ones refined. PSNR is that
of whole test views before (`psnr`) and after (`fitted_psnr`) their poses were fitted (docs/poses.md). Pose errors are
means over the training images after alignment; distances are shares of the scale. The third reports which images a
run names as hard (`evaluate/hard_images.py`), for no wrong poses, 2 % and 10 % of them, with the policies none, prune
and hard. Prints one JSON row per run. `builtin` names the built-in scene.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from raymine import recipes
from raymine.bench.measure import Hooks, train_for
from raymine.cameras import exp_se3, pose_errors
from raymine.config import replace_fields
from raymine.contracts import Scene
from raymine.evaluate import FitConfig, evaluate_views
from raymine.evaluate.fit import fitted_scores
from raymine.evaluate.hard_images import ImageErrors
from raymine.evaluate.quick import quick_psnr
from raymine.experiment.prepare import evaluation_frames, open_data
from raymine.files import JSON
from raymine.rundir import describe_environment
from raymine.scenes.builtin import builtin_scene
from raymine.scenes.load import load_scene
from raymine.step import TrainConfig, TrainData, TrainState, create_state, train_step
from raymine.step.poses import PoseConfig, move_poses, scene_scale

BLACK = (0.0, 0.0, 0.0)
EVEN: dict[str, JSON] = {"pixels.policy": "uniform"}
POLICIES: dict[str, dict[str, JSON]] = {
    "none": {"mining.policy": "none"},
    "none, even pixels": {"mining.policy": "none", **EVEN},
    "hard": {},
    "hard, even pixels": EVEN,
    "hard, pixels by edges": {"pixels.policy": "edges"},
    "hard, pixels by error and edges": {"pixels.policy": "error+edges"},
    "hard, error and edges, image limit 1": {"pixels.policy": "error+edges", "pixels.image_limit": 1.0},
    "hard, Huber": {"loss.kind": "huber", "loss.delta": 0.1},
}


def turned(scene: Scene, share: float, degrees: float, seed: int) -> tuple[Scene, int]:
    """The scene with some training cameras turned by `degrees` about random axes through the centre of its box."""
    rng = np.random.default_rng(seed)
    centre = (np.array(scene.bounds.low) + np.array(scene.bounds.high)) / 2
    train = scene.of_split("train")
    wrong = set(rng.choice(train, round(share * len(train)), replace=False).tolist())
    frames = list(scene.frames)
    for i in sorted(wrong):
        axis = rng.normal(size=3)
        x, y, z = axis / np.linalg.norm(axis)
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        angle = np.radians(degrees)
        turn = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
        pose = turn @ frames[i].pose
        pose[:, 3] += centre - turn @ centre
        frames[i] = replace(frames[i], pose=pose)
    return replace(scene, frames=tuple(frames)), len(wrong)


def perturbed(scene: Scene, degrees: float, distance: float, seed: int) -> Scene:
    """The scene with every training camera turned by `degrees` and moved by `distance` times the scale of the scene."""
    rng = np.random.default_rng(seed)
    frames = list(scene.frames)
    for i in scene.of_split("train"):
        axis, way = (vector / np.linalg.norm(vector) for vector in rng.normal(size=(2, 3)))
        twist = np.concatenate((np.radians(degrees) * axis, np.zeros(3)))
        motion = exp_se3(torch.from_numpy(twist[None]))
        motion[0, :, 3] = torch.from_numpy(distance * scene_scale(scene.bounds) * way)
        pose = move_poses(torch.from_numpy(frames[i].pose[None]), motion)[0].numpy()
        frames[i] = replace(frames[i], pose=pose)
    return replace(scene, frames=tuple(frames))


def poses_of(scene: Scene) -> np.ndarray:
    """Poses [I, 3, 4] of the training images."""
    return np.stack([scene.frames[i].pose for i in scene.of_split("train")])


def recovery_rows(true: Scene, args: argparse.Namespace) -> Iterator[dict[str, JSON]]:
    """A row for each policy and each of: right poses, wrong poses, wrong poses refined."""
    wrong = perturbed(true, args.perturb_degrees, args.perturb_distance, seed=0)
    cpu, frames = torch.device("cpu"), evaluation_frames(true, args.views)
    with contextlib.ExitStack() as stack:
        views = stack.enter_context(open_data(true, frames, cpu, None)).train
        loaded = {
            name: stack.enter_context(open_data(scene, scene.of_split("train"), cpu, None)).train
            for name, scene in (("right", true), ("wrong", wrong))
        }
        for policy in args.policies:
            for name, scene, refined in (("right", true, False), ("wrong", wrong, False), ("wrong", wrong, True)):
                config = replace_fields(recipes.build("ngp", scene, "cpu"), POLICIES[policy])
                config = replace(config, poses=PoseConfig() if refined else None)
                state, background = trained(config, loaded[name], args.seconds, args.steps), true.background or BLACK
                found = poses_of(scene) if state.poses is None else moved(state, scene)
                errors = pose_errors(found, poses_of(true))
                direct = evaluate_views(state.renderer(), views.rig, views.images, background=background)
                fit = fitted_scores(
                    state, state.renderer(), scene, frames, views.images, FitConfig(), trained=scene.of_split("train")
                )
                yield {
                    "policy": policy,
                    "poses": f"{name}, refined" if refined else name,
                    "perturb_degrees": args.perturb_degrees,
                    "perturb_distance": args.perturb_distance,
                    "images": len(found),
                    "seconds": None if args.steps else args.seconds,
                    "steps": state.step,
                    "views": len(frames),
                    "psnr": round(direct.psnr, 3),
                    "fitted_psnr": round(fit.evaluation.psnr, 3),
                    "fit_steps": fit.config.steps,
                    "fit_pixels": fit.config.pixels,
                    "error_degrees": round(float(errors.degrees.mean()), 4),
                    "error_distance": round(float(errors.distance.mean()) / scene_scale(true.bounds), 5),
                }


def moved(state: TrainState, scene: Scene) -> np.ndarray:
    """The refined poses [I, 3, 4]."""
    assert state.poses is not None
    return state.poses.moved(torch.from_numpy(poses_of(scene))).numpy()


def trained(config: TrainConfig, data: TrainData, seconds: float, steps: int = 0) -> TrainState:
    """A state after `seconds` of training, or after `steps` if above 0; a throw-away one takes the compiling."""
    cpu = torch.device("cpu")
    warm = create_state(config, data, seed=1, device=cpu)
    for _ in range(2):
        train_step(warm, data)
    state = create_state(config, data, seed=0, device=cpu)
    if steps:
        state.horizon = steps
        for _ in range(steps):
            train_step(state, data)
        return state
    # The PSNR at the end is all that is wanted.
    train_for(state, seconds, Hooks(lambda _: [train_step(state, data)], lambda *_: None))
    return state


GUARD_SHARES = (0.0, 0.02, 0.1)
GUARD_POLICIES = ("none", "prune", "hard")
GUARD_LOOKS = 4


def guard_rows(path: str | Path, downscale: int, steps: int, degrees: float, seed: int) -> Iterator[dict[str, JSON]]:
    """A row for each share of wrong poses and each policy: PSNR on clean test views, hits and false alarms."""
    right = load_scene(path, downscale=downscale)
    for share in GUARD_SHARES:
        scene, _ = turned(right, share, degrees, seed)
        for policy in GUARD_POLICIES:
            yield guard_row(right, scene, policy, steps, degrees, seed)


def guard_row(right: Scene, scene: Scene, policy: str, steps: int, degrees: float, seed: int) -> dict[str, JSON]:
    """Train on `scene`, which is `right` with some wrong poses, and look at the training images as a run does."""
    cpu, frames = torch.device("cpu"), scene.of_split("train")
    wrong = {i for i, frame in enumerate(frames) if scene.frames[frame] is not right.frames[frame]}
    backdrop = scene.background or (0.0, 0.0, 0.0)
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(open_data(scene, frames, cpu, None)).train
        views = stack.enter_context(open_data(scene, evaluation_frames(scene, 25), cpu, None)).train
        config = replace_fields(recipes.build("ngp", scene, "cpu"), {"mining.policy": policy})
        state, errors = create_state(config, data, seed=seed, device=cpu), ImageErrors(data, backdrop)
        state.horizon = steps
        looks, spent = [], 0.0
        errors.look(state.renderer())  # compiles
        for step in range(1, steps + 1):
            train_step(state, data)
            if step % (steps // GUARD_LOOKS) == 0:
                started = time.perf_counter()
                looks.append(errors.look(state.renderer()))
                spent += time.perf_counter() - started
        started = time.perf_counter()
        psnr = quick_psnr(state.renderer(), views, backdrop)
        evaluation = time.perf_counter() - started
        named = set(errors.hard_images(looks, state.renderer()))
    return {
        "bench": "poses-guard",
        "scene": scene.root.name,
        "policy": policy,
        "wrong": len(wrong),
        "of": len(frames),
        "degrees": degrees,
        "seed": seed,
        "steps": steps,
        "psnr": round(psnr, 3),
        "hits": len(named & wrong),
        "false_alarms": len(named - wrong),
        "looks": len(looks),
        "look_seconds": round(spent / max(1, len(looks)), 4),
        "evaluation_seconds": round(evaluation, 4),
        "device": describe_environment(cpu).device,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene")
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--degrees", type=float, default=3.0)
    parser.add_argument("--policies", nargs="+", choices=POLICIES)
    parser.add_argument("--perturb-degrees", type=float, default=0.0)
    parser.add_argument("--perturb-distance", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=0, help="with perturbed poses or --guard: instead of seconds")
    parser.add_argument("--views", type=int, default=10, help="with perturbed poses: test views")
    parser.add_argument("--guard", action="store_true", help="which images a run names, with 0, 2 and 10 %% wrong")
    parser.add_argument("--seed", type=int, default=0, help="of the runs of --guard")
    args = parser.parse_args()
    recovering = args.perturb_degrees > 0 or args.perturb_distance > 0
    args.policies = args.policies or (["hard"] if recovering else list(POLICIES))
    path = builtin_scene() if args.scene == "builtin" else args.scene
    name_of_scene = args.scene.rstrip("/").rsplit("/", 1)[-1]
    if args.guard:
        for found in guard_rows(path, args.downscale, args.steps or 800, args.degrees, args.seed):
            print(json.dumps(found), flush=True)
        return
    loaded = load_scene(path, downscale=args.downscale)
    if recovering:
        for row in recovery_rows(loaded, args):
            machine = {"device": describe_environment(torch.device("cpu")).device, "threads": torch.get_num_threads()}
            print(json.dumps({"bench": "poses", "scene": name_of_scene, **row, **machine}), flush=True)
        return
    scene, wrong = turned(loaded, args.share, args.degrees, seed=0)
    cpu = torch.device("cpu")
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(open_data(scene, scene.of_split("train"), cpu, None)).train
        views = stack.enter_context(open_data(scene, evaluation_frames(scene, 25), cpu, None)).train
        for name in args.policies:
            config = replace_fields(recipes.build("ngp", scene, "cpu"), POLICIES[name])
            state = trained(config, data, args.seconds)
            row = {
                "bench": "poses",
                "scene": name_of_scene,
                "policy": name,
                "wrong": wrong,
                "of": len(data.rig),
                "degrees": args.degrees,
                "seconds": args.seconds,
                "steps": state.step,
                "psnr": round(quick_psnr(state.renderer(), views, scene.background or (0.0, 0.0, 0.0)), 3),
                "device": describe_environment(cpu).device,
                "threads": torch.get_num_threads(),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
