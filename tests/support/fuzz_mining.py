"""Fuzz cases of `raymine.mining`: capacity, configs, drawing and the miner.

The cases of diagnostics are in `fuzz_diagnose`; `CASES` has both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Selection
from raymine.mining import HardConfig, Miner, MiningConfig, draw, output_gradients, pull_back
from raymine.mining.capacity import Capacity
from support import fuzz_diagnose
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_arguments import rand
from support.fuzz_diagnose import sizes_args
from support.fuzz_expect import Array, careful, equals, flat, moderate, plain, require

MINE = "raymine.mining"

# ---- capacity


def run_capacity(taken: Tensor, total: int, high: float) -> Any:
    capacity = Capacity(high, torch.device("cpu"))
    return capacity.compact(taken, total), capacity.bound(torch.tensor(3), total), len(capacity.tensors())


def compacted(taken: Array, total: int, high: float) -> Any:
    require(0 < high <= 1 and total >= len(flat(taken, "b")), "numbers")
    index = np.flatnonzero(taken)
    return (index, np.ones(len(index))), 3, 3


def trim_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "index": torch.randperm(size.samples, generator=rng),
        "weight": rand(rng, size.samples),
        "live": rand(rng, size.samples) > 0.5,
    }


def trimmed(index: Array, weight: Array, live: Array) -> Any:
    require(flat(index, "i").shape == flat(weight).shape == flat(live, "b").shape, "shapes")
    order = np.argsort(index[live], kind="stable")
    return index[live][order], weight[live][order]


# ---- configs


def sound_hard(args: Args, config: HardConfig) -> str:
    sound = 0 < config.rate <= 1 and 0 < config.low <= config.high <= 1 and config.low == args["low"]
    return "" if sound else f"{config} was accepted"


def sound_mining(args: Args, config: MiningConfig) -> str:
    sound = 0 <= config.stop < 1 and 0 <= config.faint < 1 and config.stop == args["stop"]
    return "" if sound else f"{config} was accepted"


# ---- drawing


def shares(size: Array) -> Array:
    total = flat(size).sum()
    return size / total if total > 0 else size


def draw_args(rng: torch.Generator, size: Size) -> Args:
    p = rand(rng, size.samples)
    return {"p": p / p.sum().clamp_min(1e-6), "budget": torch.tensor(7.0), "uniform": rand(rng, size.samples)}


def chances(p: Array, budget: Array) -> Array:
    require(budget.shape == () and budget.dtype == np.float64, "budget")
    return np.minimum(flat(p) * budget, 1.0)


def by_chance(p: Array, budget: Array, uniform: Array) -> Any:
    require(flat(uniform).shape == p.shape, "uniform")
    return uniform < chances(p, budget), chances(p, budget)


def raced(p: Array, uniform: Array) -> Array:
    require(flat(uniform).shape == flat(p).shape, "uniform")
    return np.where(p > 0, -np.log1p(-uniform) / p, np.inf)


@careful
def evenly(args: Args, result: Any) -> str:
    """Chosen samples have a chance, and among any first k of them are the sum of the chances, up to one."""
    chance = chances(plain(args["p"]), plain(args["budget"]))
    require(args["uniform"].shape == () and args["uniform"].is_floating_point(), "uniform")
    bad = equals(lambda **_: chance)(args, result[1])
    taken = plain(result[0])
    if bad or taken.shape != chance.shape:
        return bad or f"shape {list(taken.shape)}"
    start = float(args["uniform"])
    if not moderate(args) or not (chance >= 0).all() or not 0 <= start < 1:
        return ""
    off = np.abs(taken.cumsum() - (chance.cumsum() + start)) if len(taken) else np.zeros(1)
    return "" if (chance[taken] > 0).all() and off.max() <= 1 + 1e-4 else "not as many as their chances say"


# ---- the miner


def choose_args(rng: torch.Generator, size: Size) -> Args:
    return {"gradient": rand(rng, size.samples, 4, low=-1), "marched": size.samples + 5, "seed": 3, "step": 2}


def run_choose(config: HardConfig) -> Any:
    return lambda gradient, **numbers: Miner(config, images=10).choose(gradient, **numbers)


def run_choose_by_size(size: Tensor, images: int, **numbers: Any) -> Any:
    miner = Miner(images=images)
    return miner.choose_by_size(size, **numbers), miner.tensors()["tau"]


def sound_choice(size: Array, marched: int, config: HardConfig, chosen: Selection) -> str:
    """What is wrong with a choice among samples of the sizes [B], by the formulas of `mining.draw`."""
    index, weight = plain(chosen.index), plain(chosen.weight)
    if index.shape != weight.shape or index.ndim != 1 or chosen.index.dtype != torch.int64:
        return "index and weight must be [b]"
    if not ((index >= 0) & (index < len(size))).all() or len(set(index.tolist())) != len(index):
        return "a chosen sample does not exist, or is listed twice"
    if not (np.isfinite(weight) & (weight > 0)).all():
        return "a weight is not positive"
    if not len(size) or not (np.isfinite(size) & (size >= 0)).all() or size.max() > 1e12 or not size.sum() > 0:
        return "" if not len(size) or size.sum() != 0 or not len(index) else "a sample without a gradient is chosen"
    p = size / size.sum()
    tau = math.sqrt(marched * (p**2).sum())
    budget = min(max(marched / (0.9 + 0.1 * tau), config.low * marched), config.high * marched)
    if abs(float(chosen.tau) - tau) > 1e-3 * tau or abs(float(chosen.budget) - budget) > 1e-3 * max(budget, 1):
        return f"tau {float(chosen.tau):g} and budget {float(chosen.budget):g} instead of {tau:g} and {budget:g}"
    if (p[index] == 0).any():
        return "a sample without a gradient is chosen"
    if config.draw == "systematic":
        chance = np.minimum(p * budget, 1.0)
        if abs(len(index) - chance.sum()) > 1 + 1e-3:
            return f"{len(index)} samples are chosen instead of about {chance.sum():.1f}"
        return "" if np.allclose(weight, 1 / chance[index], rtol=1e-3) else "weights are not 1 / probability"
    return "" if len(index) <= max(1, math.floor(budget)) else "more samples are chosen than the budget allows"


def chosen_well(config: HardConfig) -> Any:
    @careful
    def holds(args: Args, chosen: Selection) -> str:
        gradient = plain(args["gradient"])
        require(gradient.ndim == 2 and gradient.dtype == np.float64 and args["marched"] >= len(gradient), "gradient")
        size = np.linalg.norm(gradient, axis=-1).astype(np.float32).astype(np.float64)
        size = np.where(np.isfinite(size) & (size < 1e18), size, 0.0) if size.max(initial=0) < 1e18 else size * np.nan
        return sound_choice(size, args["marched"], config, chosen)

    return holds


@careful
def chosen_by_size(args: Args, result: Any) -> str:
    size, (chosen, tau) = plain(args["size"]), result
    require(size.ndim == 1 and size.dtype == np.float64 and args["images"] >= 1, "size")
    if not bool(torch.isfinite(tau)) or tau.shape != ():
        return "the running average is not finite"
    if args["images"] != 10:
        return ""
    return sound_choice(size, args["marched"], HardConfig(), chosen)


def backward_args(rng: torch.Generator, size: Size) -> Args:
    """The model leaves out the first `dropped` rows of its output: a wrong result of a callback, unless it is 0."""
    return {"inputs": rand(rng, size.samples, 3, low=-1), "dropped": 0, "step": 2}


def run_backward(inputs: Tensor, dropped: int, step: int) -> Any:
    weight = torch.nn.Parameter(torch.tensor([[0.5, 0.1], [-0.3, 0.2], [0.4, 0.3]]))

    def model(x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != 3 or x.dtype != torch.float32 or x.device.type != "cpu":
            raise ValueError("this model takes `inputs` of shape [n, 3]")
        return (x @ weight)[dropped:]

    mined = Miner(images=10).backward(model, (inputs,), lambda z: (z * z).sum() / 2, step=step)
    return weight.detach(), weight.grad, mined.loss, mined.selection, mined.gradient


@careful
def gradient_of_the_chosen(args: Args, result: Any) -> str:
    weight, grad, chosen = plain(result[0]), result[1], result[3]
    x = plain(args["inputs"])
    require(args["dropped"] == 0 or args["dropped"] < -len(x) or not len(x), "dropped")
    bad = equals(lambda **_: (((x @ weight) ** 2).sum() / 2, x @ weight))(args, (result[2], result[4]))
    if bad or not moderate(args):
        return bad
    index = plain(chosen.index)
    wanted = x[index].T @ ((x @ weight)[index] * plain(chosen.weight)[:, None])
    return equals(lambda **_: wanted)(args, grad) if len(index) else ""


def gradients_args(rng: torch.Generator, size: Size) -> Args:
    """The objective adds `offset` to its loss, so that wrong losses are tried too."""
    return {
        "colour": rand(rng, size.samples, 3),
        "density": rand(rng, size.samples),
        "offset": torch.tensor(1.0),
        "scale": 4.0,
    }


def run_gradients(colour: Tensor, density: Tensor, offset: Tensor, scale: float) -> Any:
    def objective(a: Tensor, b: Tensor) -> tuple[Tensor, str]:
        if offset.device != a.device:
            raise ValueError("this objective takes an `offset` with values")
        return (a * a).sum() + 3 * b.sum() + offset, "told"

    return output_gradients(objective, (colour, density), scale)


@careful
def gradients_of(args: Args, result: Any) -> str:
    (first, second), told = result
    require(args["offset"].numel() == 1 and not args["offset"].is_complex(), "offset")
    colour, density = plain(args["colour"]), plain(args["density"])
    require(colour.dtype == density.dtype == np.float64, "types")
    bad = equals(lambda **_: (2 * colour, np.full_like(density, 3.0)), close=1e-3)(args, (first, second))
    return bad if told == "told" else "the second result of the objective is lost"


def pull_args(rng: torch.Generator, size: Size) -> Args:
    many = (size.samples + 1) // 2
    return {
        "outputs": rand(rng, many, 3),
        "gradients": rand(rng, size.samples, 3),
        "index": torch.randperm(size.samples, generator=rng)[:many],
        "weight": rand(rng, many),
    }


def run_pull(outputs: Tensor, gradients: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    parameter = outputs.detach().clone()
    if parameter.is_floating_point():
        parameter.requires_grad_()
    pull_back([parameter * 1], [gradients], Selection(index, weight, torch.tensor(1.0), torch.tensor(1.0)))
    assert parameter.grad is not None
    return parameter.grad


def pulled(outputs: Array, gradients: Array, index: Array, weight: Array) -> Array:
    require(flat(index, "i").shape == flat(weight).shape, "selection")
    require(((index >= 0) & (index < len(gradients))).all(), "index")
    require(outputs.shape == (len(index), *gradients.shape[1:]) and gradients.dtype == np.float64, "outputs")
    return gradients[index] * weight.reshape(-1, *(1,) * (gradients.ndim - 1))


PUBLISHED = HardConfig(draw="multinomial")

CASES = [
    Case(
        tuple(f"{MINE}.capacity.Capacity{name}" for name in ("", ".compact", ".bound", ".tensors")),
        lambda rng, size: {"taken": rand(rng, size.samples) > 0.5, "total": size.samples + 3, "high": 0.5},
        run_capacity,
        holds=equals(compacted),
    ),
    Case(
        (f"{MINE}.capacity.Capacity.trim",),
        trim_args,
        lambda **args: Capacity(0.5, torch.device("cpu")).trim(**args, total=USUAL.samples),
        holds=equals(trimmed),
    ),
    Case(
        (f"{MINE}.config.HardConfig",),
        lambda *_: {"rate": 0.1, "low": 0.1, "high": 0.4},
        HardConfig,
        holds=sound_hard,
        sizes=(USUAL,),
    ),
    Case(
        (f"{MINE}.config.MiningConfig",),
        lambda *_: {"stop": 0.1, "faint": 0.1},
        MiningConfig,
        holds=sound_mining,
        sizes=(USUAL,),
    ),
    Case(
        (f"{MINE}.draw.norms",),
        lambda rng, size: {"gradient": rand(rng, size.samples, 4)},
        draw.norms,
        holds=equals(
            lambda gradient: (
                require(gradient.ndim == 2 and gradient.dtype == np.float64, "gradient")
                or np.nan_to_num(np.linalg.norm(gradient, axis=-1), nan=0.0, posinf=0.0)
            )
        ),
    ),
    Case((f"{MINE}.draw.probabilities",), sizes_args, draw.probabilities, holds=equals(shares)),
    Case(
        (f"{MINE}.draw.concentration",),
        lambda rng, size: {"p": draw_args(rng, size)["p"], "marched": size.samples + 3},
        draw.concentration,
        holds=equals(lambda p, marched: require(marched >= 0, "marched") or math.sqrt((flat(p) ** 2).sum() * marched)),
    ),
    Case((f"{MINE}.draw.poisson",), draw_args, draw.poisson, holds=equals(by_chance)),
    Case(
        (f"{MINE}.draw.race",),
        lambda rng, size: {k: v for k, v in draw_args(rng, size).items() if k != "budget"},
        draw.race,
        holds=equals(raced, close=1e-3),
    ),
    Case(
        (f"{MINE}.draw.systematic",),
        lambda rng, size: {**draw_args(rng, size), "uniform": torch.tensor(0.4)},
        draw.systematic,
        holds=evenly,
    ),
    *(
        Case(
            (f"{MINE}.miner.Miner.choose",),
            choose_args,
            run_choose(config),
            holds=chosen_well(config),
            label=config.draw,
        )
        for config in (HardConfig(), PUBLISHED)
    ),
    Case(
        tuple(f"{MINE}.miner.Miner{name}" for name in ("", ".choose_by_size", ".tensors")),
        lambda rng, size: {
            "size": rand(rng, size.samples),
            "images": 10,
            "marched": size.samples,
            "seed": 1,
            "step": 4,
        },
        run_choose_by_size,
        holds=chosen_by_size,
    ),
    Case((f"{MINE}.miner.Miner.backward",), backward_args, run_backward, holds=gradient_of_the_chosen),
    Case((f"{MINE}.gradients.output_gradients",), gradients_args, run_gradients, holds=gradients_of),
    Case((f"{MINE}.miner.pull_back",), pull_args, run_pull, holds=equals(pulled)),
    *fuzz_diagnose.CASES,
]
