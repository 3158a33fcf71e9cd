"""The maths of hard sample mining (Korhonen et al.) and of drawing samples by their gradient.

Symbols, for the B samples of a step with output gradients g_i (with respect to the pre-activations z_i):

    G_i = |g_i|_2,   p_i = G_i / sum G        how much a sample still teaches
    tau = sqrt(B sum p_i^2)                   1 when all teach alike, sqrt(B) when a single one does
    tau_hat = (1 - a) tau_hat + a tau         its running average, from 1
    b = B / tau_hat, within low B .. high B   how many samples are worth training on

Four ways to take about b of them:

    multinomial   b without replacement by p: the b smallest keys E_i / p_i, where E_i is exponential (a race)
    poisson       each on its own with probability pi_i = min(1, b p_i); the count varies, b at most on average
    systematic    with the same pi_i, spread evenly along the batch; the count is sum pi rounded up or down
    topk          the b largest G

A sum over the chosen equals the sum over all in expectation when each is divided by its probability: pi_i for poisson
and systematic; for the race 1 - exp(-p_i k), with k the smallest key that lost (an estimate conditional on the keys of
the others is unbiased whatever they are).

Nothing here reads a number back from the device: results have a capacity known beforehand, and the places beyond the
number chosen carry weight 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def norms(gradient: Tensor) -> Tensor:
    """[B, C] of any float type -> [B] G float32; NaN and infinity count as 0, so that such a sample is never drawn."""
    size = torch.linalg.vector_norm(gradient.float(), dim=-1)
    return torch.where(torch.isfinite(size), size, torch.zeros_like(size))


def probabilities(size: Tensor) -> Tensor:
    """[B] G -> [B] p; all 0 where every G is."""
    total = size.sum()
    return size / torch.where(total > 0, total, torch.ones_like(total))


def concentration(p: Tensor, marched: int) -> Tensor:
    """tau [] of `marched` samples, of which those not in `p` have probability 0; 0 where every p is 0."""
    return (p.square().sum() * marched).sqrt()


def poisson(p: Tensor, budget: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Which samples are taken [B] bool, and with what probability each could be [B]; uniform: [B] in [0, 1)."""
    chance = (p * budget).clamp_max(1.0)
    return uniform < chance, chance


def race(p: Tensor, uniform: Tensor) -> Tensor:
    """[B] keys of the race, infinite where p is 0; uniform: [B] in [0, 1)."""
    key = -torch.log1p(-uniform.double()) / p.double()
    return torch.where(p > 0, key, torch.full_like(key, torch.inf))


def systematic(p: Tensor, budget: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """As `poisson`, with one random number [] for all: a sample is taken where the running total of chances, started
    at that number, passes a whole number. Neighbours (samples of one ray) share what they are due, so how much of a
    ray is taken hardly varies.
    """
    chance = (p * budget).clamp_max_(1.0)
    whole = chance.cumsum(0, dtype=torch.float64).add_(uniform).floor_()
    taken = torch.diff(whole, prepend=whole.new_zeros(1)) > 0
    return taken & (chance > 0), chance
