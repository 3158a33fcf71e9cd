"""The maths of hard sample mining (Korhonen et al.) and of drawing samples by their gradient.

Symbols, for the B samples of a step with output gradients g_i (with respect to the pre-activations z_i):

    G_i = |g_i|_2,   p_i = G_i / sum G        gradient norm, and its share of the total
    tau = sqrt(B sum p_i^2)                   1 when all norms are equal, sqrt(B) when only one is not 0
    tau_hat = (1 - a) tau_hat + a tau         running average of tau, starting at 1
    b = B / tau_hat, within low B .. high B   how many samples to train on

Four ways to choose about b samples:

    multinomial   b without replacement by p: the b smallest keys E_i / p_i, where E_i is exponential (a race)
    poisson       independently, each with probability pi_i = min(1, b p_i); the mean count is at most b
    systematic    with the same pi_i, spread evenly along the batch; the count is sum pi_i, rounded up or down
    topk          the b largest G

The sum over the chosen samples is an unbiased estimate of the sum over all if each sample is divided by its inclusion
probability. This is pi_i for poisson and systematic. For the race it is 1 - exp(-p_i k), where k is the smallest key
that was not chosen: given the keys of the other samples, this is the exact probability.

No function here reads a result back from the device: results have a size that is known in advance, and unused entries
have weight 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.threads import total


def norms(gradient: Tensor) -> Tensor:
    """Gradients [B, C] -> norms G [B] float32. A non-finite norm becomes 0, so that such a sample is never drawn."""
    checks.reals(gradient=gradient)
    if gradient.ndim != 2:
        raise ConfigError(f"`gradient` must have shape [B, C], got {list(gradient.shape)}.")
    size = torch.linalg.vector_norm(gradient.float(), dim=-1)
    return torch.where(torch.isfinite(size), size, torch.zeros_like(size))


def probabilities(size: Tensor) -> Tensor:
    """Norms G [B] -> p [B]; all 0 if every G is 0."""
    checks.columns(size=size)
    every = total(size)
    return size / torch.where(every > 0, every, torch.ones_like(every))


def concentration(p: Tensor, marched: int) -> Tensor:
    """tau [] of `marched` samples; samples that are not in `p` count with p = 0. Returns 0 if every p is 0."""
    checks.columns(p=p)
    checks.whole(0, 2**53, marched=marched)
    return (total(p.square()) * marched).sqrt()


def poisson(p: Tensor, budget: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each sample is chosen [B] bool, and its inclusion probability [B]; uniform: [B] in [0, 1)."""
    checks.columns(p=p, uniform=uniform)
    chance = _chance(p, budget)
    return uniform < chance, chance


def race(p: Tensor, uniform: Tensor) -> Tensor:
    """Keys of the race [B], infinite where p is 0; uniform: [B] in [0, 1)."""
    checks.columns(p=p, uniform=uniform)
    key = -torch.log1p(-uniform.double()) / p.double()
    return torch.where(p > 0, key, torch.full_like(key, torch.inf))


def systematic(p: Tensor, budget: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """As `poisson`, but with one random number [] in [0, 1) for all samples.

    The running total of the inclusion probabilities starts at that number. A sample is chosen where the total passes a
    whole number. So the number of chosen samples of a ray, which are neighbours in the batch, hardly varies.
    """
    checks.reals(p=p, uniform=uniform)
    checks.columns(p=p)
    checks.shapes([("uniform", uniform, ())], p.device)
    chance = _chance(p, budget)
    whole = chance.cumsum(0, dtype=torch.float64).add_(uniform).floor_()
    taken = torch.diff(whole, prepend=whole.new_zeros(1)) > 0
    return taken & (chance > 0), chance


def _chance(p: Tensor, budget: Tensor) -> Tensor:
    """Inclusion probabilities min(1, b p) [B]; budget: b []."""
    checks.reals(p=p, budget=budget)
    checks.shapes([("budget", budget, ())], p.device)
    return (p * budget).clamp_max_(1.0)
