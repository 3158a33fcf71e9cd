"""Control values of a fused step. Single programs compute them on the device, so that the host never waits for them.

control [2]   b / sum of sizes, 1 / (3 * sum of ray weights); b is the number of samples to choose
rates [8]     see `adam.gpu`
schedule [10] learning rate, warm-up steps, log(final / initial learning rate), horizon in steps, beta1 of the networks,
              beta2, eps, loss scale, beta1 of the table, weight decay of the networks
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _finite(x):
    return (x == x) & (tl.abs(x) < float("inf"))


@triton.jit
def budget(
    sums, programs, n_samples, tau, control, found, rate, low, high, SUMS: tl.constexpr, HARD: tl.constexpr
):  # fmt: skip
    """Runs after `judge`: computes tau and its running average (HARD), and the number of samples to choose.

    Writes control [2] and found [4]: loss, error, tau, number of samples to choose.
    """
    p, k = tl.arange(0, SUMS), tl.arange(0, 8)
    each = tl.load(sums + p[:, None] * 8 + k[None, :], mask=(p < programs)[:, None], other=0.0)
    column = tl.sum(each, 0)
    size = tl.sum(tl.where(k == 0, column, 0.0))
    square = tl.sum(tl.where(k == 1, column, 0.0))
    loss = tl.sum(tl.where(k == 2, column, 0.0))
    error = tl.sum(tl.where(k == 3, column, 0.0))
    weight = tl.sum(tl.where(k == 4, column, 0.0))
    share = 1.0 / (3.0 * tl.maximum(weight, 1.0))
    total = tl.load(n_samples).to(tl.float32)
    average = tl.load(tau)
    now = average
    if HARD:
        now = tl.where(size > 0, tl.sqrt(total * square) / size, 0.0)
        average += rate * tl.where(now > 0, now - average, 0.0)
        tl.store(tau, average)
    wanted = tl.minimum(tl.maximum(total / average, low * total), high * total)
    tl.store(control, tl.where(size > 0, wanted / size, 0.0))
    tl.store(control + 1, share)
    tl.store(found, loss * share)
    tl.store(found + 1, error * share)
    tl.store(found + 2, now)
    tl.store(found + 3, wanted)


@triton.jit(do_not_specialize=["programs", "n"])
def add_up(parts, programs, n, out, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out [n] = sum over programs of parts [programs, n], in a fixed order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for p in range(0, programs, ROWS):
        live = (p + row < programs)[:, None] & (i < n)[None, :]
        total += tl.load(parts + (p + row)[:, None] * n + i[None, :], mask=live, other=0.0)
    tl.store(out + i, tl.sum(total, 0), mask=i < n)


@triton.jit(do_not_specialize=["n", "ring", "samples", "fewest", "most"])
def conclude(
    grad, n, schedule, control, found, n_rays, n_marched, n_chosen, n_lost, step, updates,
    rates, table_rates, rows, ring, samples, fewest, most, BLOCK: tl.constexpr,
):  # fmt: skip
    """Runs before Adam. The step is skipped if the loss or the sum of the layer gradients `grad` [n] is not finite.

    Writes rates and table_rates [8], the number of rays of the next step, and row step % ring of rows [ring, 10], which
    the host reads: loss, error, rays, marched samples, chosen samples, tau, budget, learning rate, 1 if the step is
    applied, rays that did not fit into the buffers.
    """
    total = 0.0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(grad + i, mask=i < n, other=0.0))
    loss = tl.load(found)
    counts = _finite(loss) & _finite(total)
    now = tl.load(step)
    done = tl.load(updates) + counts.to(tl.int32)
    tl.store(updates, done)
    warm = tl.load(schedule + 1)
    grown = tl.where(warm > 0, tl.minimum((now + 1).to(tl.float32) / tl.maximum(warm, 1.0), 1.0), 1.0)
    spent = tl.minimum(now.to(tl.float32) / tl.maximum(tl.load(schedule + 3), 1.0), 1.0)
    rate = tl.load(schedule) * grown * tl.exp(tl.load(schedule + 2) * spent)
    b1, b2 = tl.load(schedule + 4), tl.load(schedule + 5)
    table_b1 = tl.load(schedule + 8)
    k = tl.maximum(done, 1).to(tl.float32)
    corrected = 1.0 / (1.0 - tl.exp(k * tl.log(b2)))
    unscale = tl.load(control + 1) / tl.load(schedule + 7)
    flag = tl.where(counts, 1.0, 0.0)
    first1 = tl.where(b1 > 0, 1.0 - tl.exp(k * tl.log(tl.maximum(b1, 1e-30))), 1.0)
    first2 = tl.where(table_b1 > 0, 1.0 - tl.exp(k * tl.log(tl.maximum(table_b1, 1e-30))), 1.0)
    tl.store(rates, flag)
    tl.store(table_rates, flag)
    tl.store(rates + 1, unscale)
    tl.store(table_rates + 1, unscale)
    tl.store(rates + 2, rate / first1)
    tl.store(table_rates + 2, rate / first2)
    tl.store(rates + 3, b1)
    tl.store(table_rates + 3, table_b1)
    tl.store(rates + 4, b2)
    tl.store(table_rates + 4, b2)
    tl.store(rates + 5, corrected)
    tl.store(table_rates + 5, corrected)
    tl.store(rates + 6, tl.load(schedule + 6))
    tl.store(table_rates + 6, tl.load(schedule + 6))
    tl.store(rates + 7, rate * tl.load(schedule + 9))
    tl.store(table_rates + 7, 0.0)
    rays, marched = tl.load(n_rays), tl.load(n_marched)
    row = rows + (now % ring) * 10
    tl.store(row, loss)
    tl.store(row + 1, tl.load(found + 1))
    tl.store(row + 2, rays.to(tl.float32))
    tl.store(row + 3, marched.to(tl.float32))
    tl.store(row + 4, tl.load(n_chosen).to(tl.float32))
    tl.store(row + 5, tl.load(found + 2))
    tl.store(row + 6, tl.load(found + 3))
    tl.store(row + 7, rate)
    tl.store(row + 8, flag)
    tl.store(row + 9, tl.load(n_lost).to(tl.float32))
    following = (rays.to(tl.int64) * samples // tl.maximum(marched, 1)).to(tl.int32)
    following = tl.minimum(tl.minimum(following, 2 * rays), most)
    tl.store(n_rays, tl.maximum(following, fewest))
    tl.store(step, now + 1)
