"""What wrong poses do to hard sample mining, which guard helps, and how well pose refinement recovers them.

    python benchmarks/bench_poses.py SCENE --downscale 4 --seconds 60 --share 0.1 --degrees 3
    python benchmarks/bench_poses.py SCENE --downscale 2 --seconds 60 --perturb-degrees 1 --perturb-distance 0.01
    python benchmarks/bench_poses.py builtin --guard --steps 800

The first form turns some training cameras about random axes through the centre of the scene, trains with each policy
for the same time and evaluates on test views, whose poses are right. The second turns every training camera about a
random axis through its own centre, moves it in a random direction by a share of the scale of the scene, and trains
three times with each policy: with the right poses, with the wrong ones, and with the wrong ones refined. PSNR is that
of whole test views before (`psnr`) and after (`fitted_psnr`) their poses were fitted (docs/poses.md). Pose errors are
means over the training images after alignment; distances are shares of the scale. `ended` is the step at which
refinement ended, 0 if it went on to the end. The third reports which images a run names as hard
(`evaluate/hard_images.py`), for no wrong poses, 2 % and 10 % of them, and the PSNR of test views with their true poses.
Prints one JSON row per run, with the commit, and appends it to `--out`. `builtin` names the built-in scene.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from raymine import recipes
from raymine.bench.measure import BURST, Hooks, train_for
from raymine.bench.rows import append_rows
from raymine.bench.turns import turn
from raymine.cameras import exp_se3, pose_errors
from raymine.config import replace_fields
from raymine.contracts import Scene
from raymine.engines import Engine, engine_for
from raymine.evaluate import FitConfig, evaluate_views
from raymine.evaluate.fit import fitted_scores
from raymine.evaluate.hard_images import ImageErrors
from raymine.evaluate.quick import quick_psnr
from raymine.experiment.prepare import evaluation_frames, open_data, resolve_device
from raymine.files import JSON
from raymine.rundir import describe_environment
from raymine.scenes.builtin import builtin_scene
from raymine.scenes.load import load_scene
from raymine.step import TrainConfig, TrainData, TrainState, create_state
from raymine.step.poses import PoseConfig, move_poses, scene_scale

BLACK = (0.0, 0.0, 0.0)
EVEN: dict[str, JSON] = {"pixels.policy": "uniform"}
POLICIES: dict[str, dict[str, JSON]] = {
    "none": {"mining.policy": "none"},
    "prune": {"mining.policy": "prune"},
    "none, even pixels": {"mining.policy": "none", **EVEN},
    "hard": {},
    "hard, even pixels": EVEN,
    "hard, pixels by edges": {"pixels.policy": "edges"},
    "hard, pixels by error and edges": {"pixels.policy": "error+edges"},
    "hard, error and edges, image limit 1": {"pixels.policy": "error+edges", "pixels.image_limit": 1.0},
    "hard, Huber": {"loss[0].kind": "huber", "loss[0].delta": 0.1},
}


KINDS = ("right", "wrong", "wrong-refined")


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


def config_for(policy: str, scene: Scene, device: torch.device) -> TrainConfig:
    """The recipe `ngp` with the settings of a policy."""
    return replace_fields(recipes.build("ngp", scene, device.type), POLICIES[policy])


def recovery_rows(true: Scene, args: argparse.Namespace, device: torch.device) -> Iterator[dict[str, JSON]]:
    """A row for each policy and each of: right poses, wrong poses, wrong poses refined."""
    wrong = perturbed(true, args.perturb_degrees, args.perturb_distance, args.seed)
    frames = evaluation_frames(true, args.views)
    with contextlib.ExitStack() as stack:
        views = stack.enter_context(open_data(true, frames, device, None)).train
        loaded = {
            name: stack.enter_context(open_data(scene, scene.of_split("train"), device, None)).train
            for name, scene in (("right", true), ("wrong", wrong))
        }
        for policy in args.policies:
            for kind in args.kinds:
                name, refined = kind.partition("-")[0], kind == "wrong-refined"
                scene = true if name == "right" else wrong
                poses = replace(PoseConfig(until=args.until), **args.poses) if refined else None
                config = replace(config_for(policy, scene, device), poses=poses)
                made = trained(config, loaded[name], device, args)
                state, background = made.state, true.background or BLACK
                found = poses_of(scene) if state.poses is None else moved(state, scene)
                errors = pose_errors(found, poses_of(true))
                renderer = made.engine.renderer()
                direct = evaluate_views(renderer, views.rig, views.images, background=background)
                wanted = FitConfig(steps=args.fit_steps)
                fit = fitted_scores(
                    state, renderer, scene, frames, views.images, wanted, trained=scene.of_split("train")
                )
                yield {
                    "bench": "poses",
                    "policy": policy,
                    "poses": f"{name}, refined" if refined else name,
                    "perturb_degrees": args.perturb_degrees,
                    "perturb_distance": args.perturb_distance,
                    "images": len(found),
                    "seed": args.seed,
                    "seconds": round(made.seconds, 1),
                    "steps": state.step,
                    **({} if state.poses is None else {**asdict(state.poses.config), "ended": state.poses.ended}),
                    "views": len(frames),
                    "psnr": round(direct.psnr, 3),
                    "fitted_psnr": round(fit.evaluation.psnr, 3),
                    "fit_steps": fit.config.steps,
                    "fit_pixels": fit.config.pixels,
                    "fit_seconds": round(fit.seconds, 1),
                    "error_degrees": round(float(errors.degrees.mean()), 4),
                    "error_distance": round(float(errors.distance.mean()) / scene_scale(true.bounds), 5),
                }


def moved(state: TrainState, scene: Scene) -> np.ndarray:
    """The refined poses [I, 3, 4]."""
    assert state.poses is not None
    return state.poses.moved(torch.from_numpy(poses_of(scene)).to(state.device)).cpu().numpy()


class Trained(NamedTuple):
    """A trained state, its engine, and the seconds that the steps took."""

    state: TrainState
    engine: Engine
    seconds: float


def trained(config: TrainConfig, data: TrainData, device: torch.device, args: argparse.Namespace) -> Trained:
    """A state after `args.seconds` of training, or after `args.steps` if that is above 0; compiling is not counted."""
    state = create_state(config, data, seed=args.seed, device=device)
    engine = engine_for(state, data)
    engine.warm_up()
    if args.steps:
        state.horizon = args.steps
        return Trained(state, engine, advance(engine, state, args.steps))
    # The PSNR at the end is all that is wanted.
    hooks = Hooks(engine.advance, lambda *_: None, synchronise=waiting(device))
    with turn(args.turns):
        log = train_for(state, args.seconds, hooks)
    return Trained(state, engine, log.elapsed)


def advance(engine: Engine, state: TrainState, until: int) -> float:
    """Train until step `until`. Returns the seconds that it took."""
    started = time.perf_counter()
    while state.step < until:
        engine.advance(min(BURST, until - state.step))
    waiting(state.device)()
    return time.perf_counter() - started


def waiting(device: torch.device) -> Callable[[], None]:
    """What waits for the device."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


GUARD_SHARES = (0.0, 0.02, 0.1)
GUARD_POLICIES = ("none", "prune", "hard")
GUARD_LOOKS = 4


def guard_rows(right: Scene, args: argparse.Namespace, device: torch.device) -> Iterator[dict[str, JSON]]:
    """A row for each share of wrong poses and each policy: PSNR on clean test views, hits and false alarms."""
    for share in args.shares:
        scene, _ = turned(right, share, args.degrees, args.seed)
        for policy in args.policies:
            yield guard_row(right, scene, policy, args, device)


def guard_row(
    right: Scene, scene: Scene, policy: str, args: argparse.Namespace, device: torch.device
) -> dict[str, JSON]:
    """Train on `scene`, which is `right` with some wrong poses, and look at the training images as a run does."""
    frames = scene.of_split("train")
    wrong = {i for i, frame in enumerate(frames) if scene.frames[frame] is not right.frames[frame]}
    backdrop = scene.background or BLACK
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(open_data(scene, frames, device, None)).train
        views = stack.enter_context(open_data(scene, evaluation_frames(scene, 25), device, None)).train
        state = create_state(config_for(policy, scene, device), data, seed=args.seed, device=device)
        errors = ImageErrors(data, backdrop, state)
        state.horizon = args.steps
        engine = engine_for(state, data)
        engine.warm_up()
        errors.look(engine.renderer())  # compiles
        looks, spent, training = [], 0.0, 0.0
        for number in range(1, GUARD_LOOKS + 1):
            training += advance(engine, state, args.steps * number // GUARD_LOOKS)
            started = time.perf_counter()
            looks.append(errors.look(engine.renderer()))
            spent += time.perf_counter() - started
        started = time.perf_counter()
        psnr = quick_psnr(engine.renderer(), views, backdrop)
        evaluation = time.perf_counter() - started
        named = set(errors.hard_images(looks, engine.renderer()))
    return {
        "bench": "poses-guard",
        "policy": policy,
        "wrong": len(wrong),
        "of": len(frames),
        "pixels": [int(size) for size in data.images.sizes[0][::-1]],
        "degrees": args.degrees,
        "seed": args.seed,
        "steps": args.steps,
        "seconds": round(training, 1),
        "psnr": round(psnr, 3),
        "hits": len(named & wrong),
        "false_alarms": len(named - wrong),
        "looks": len(looks),
        "look_seconds": round(spent / max(1, len(looks)), 4),
        "evaluation_seconds": round(evaluation, 4),
    }


def policy_rows(right: Scene, args: argparse.Namespace, device: torch.device) -> Iterator[dict[str, JSON]]:
    """A row for each policy: PSNR on clean test views after training with some wrong poses."""
    scene, wrong = turned(right, args.share, args.degrees, args.seed)
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(open_data(scene, scene.of_split("train"), device, None)).train
        views = stack.enter_context(open_data(scene, evaluation_frames(scene, 25), device, None)).train
        for policy in args.policies:
            made = trained(config_for(policy, scene, device), data, device, args)
            yield {
                "bench": "poses",
                "policy": policy,
                "wrong": wrong,
                "of": len(data.rig),
                "degrees": args.degrees,
                "seed": args.seed,
                "seconds": round(made.seconds, 1),
                "steps": made.state.step,
                "psnr": round(quick_psnr(made.engine.renderer(), views, scene.background or BLACK), 3),
            }


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with the defaults of its form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene")
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=0, help="instead of seconds; 800 with --guard")
    parser.add_argument("--share", type=float, default=0.1, help="of the poses that are wrong")
    parser.add_argument("--degrees", type=float, default=3.0)
    parser.add_argument("--policies", nargs="+", choices=POLICIES)
    parser.add_argument("--perturb-degrees", type=float, default=0.0)
    parser.add_argument("--perturb-distance", type=float, default=0.0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="with perturbed poses: which")
    parser.add_argument("--views", type=int, default=10, help="with perturbed poses: test views")
    parser.add_argument("--until", type=float, default=PoseConfig.until, help="with perturbed poses: `poses.until`")
    parser.add_argument("--poses", type=json.loads, default={}, help="with perturbed poses: other settings, as JSON")
    parser.add_argument("--fit-steps", type=int, default=FitConfig.steps, help="with perturbed poses: of each view")
    parser.add_argument("--guard", action="store_true", help="which images a run names")
    parser.add_argument("--shares", nargs="+", type=float, default=GUARD_SHARES, help="with --guard: of wrong poses")
    parser.add_argument("--seed", type=int, default=0, help="of the run, and of which poses are wrong")
    parser.add_argument("--turns", type=Path, help="a lock file that processes hold while they train")
    parser.add_argument("--out", type=Path, help="a file of JSON lines to append the rows to")
    args = parser.parse_args(words)
    args.recovering = args.perturb_degrees > 0 or args.perturb_distance > 0
    if args.guard:
        args.steps = args.steps or 800
    args.policies = args.policies or (GUARD_POLICIES if args.guard else ["hard"] if args.recovering else list(POLICIES))
    return args


def main(words: Sequence[str] | None = None) -> None:
    args = arguments(words)
    device = resolve_device(args.device)
    scene = load_scene(builtin_scene() if args.scene == "builtin" else args.scene, downscale=args.downscale)
    rows = guard_rows if args.guard else recovery_rows if args.recovering else policy_rows
    environment = describe_environment(device)
    machine = {"device": environment.device, "threads": torch.get_num_threads(), "commit": environment.commit}
    named = args.scene.rstrip("/").rsplit("/", 1)[-1]
    for row in rows(scene, args, device):
        found = {"bench": row["bench"], "scene": named, "downscale": args.downscale, **row, **machine}
        print(json.dumps(found), flush=True)
        append_rows(args.out, [found])


if __name__ == "__main__":
    main()
