"""The worker process of `fuzz.run_suite`: runs trials one by one and writes what it does, and the verdict, to stdout.

`python -m support.fuzz_worker MODULE FIRST` runs the trials of a module of cases from number FIRST on; MODULE+OTHER
those of several. Memory that NumPy does not initialise gets a pattern on both sides and NaN inside, so that a write
outside of it, and an element that is never written, show up.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.errors import RaymineError
from raymine.kernels import dispatch
from support.fuzz import Args, Trial, suite_trials
from support.fuzz_results import Guards, difference, leaves

MARGIN = 64
PATTERN = 0xA5


class GuardedMemory:
    """Replaces `np.empty` and `np.empty_like`: arrays lie in the middle of larger ones and are filled with NaN."""

    def __init__(self) -> None:
        self.real = np.empty
        self.buffers: list[np.ndarray] = []
        np.empty = self.empty  # type: ignore[assignment]
        np.empty_like = lambda like: self.empty(like.shape, like.dtype)  # type: ignore[assignment]

    def empty(self, shape: Any, dtype: Any = np.float64) -> np.ndarray:
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        if size > 1 << 24:
            return self.real(shape, kind)
        buffer = np.full(size + 2 * MARGIN, PATTERN, np.uint8)
        self.buffers.append(buffer)
        out = buffer[MARGIN : MARGIN + size].view(kind).reshape(shape)
        out[...] = np.nan if kind.kind == "f" else True if kind.kind == "b" else np.iinfo(kind).max // 2
        return out

    def touched(self) -> str:
        buffers, self.buffers = self.buffers, []
        for buffer in buffers:
            if (buffer[:MARGIN] != PATTERN).any() or (buffer[len(buffer) - MARGIN :] != PATTERN).any():
                return f"memory next to a new array of {len(buffer) - 2 * MARGIN} bytes was written"
        return ""


def attempt(trial: Trial, guards: Guards) -> tuple[Any, dict[str, Any], Args]:
    """One call. -> result, gradients and changed arguments, damaged arguments."""
    case = trial.case
    args = {
        name: guards.placed(name, value, name not in case.inplace) if isinstance(value, Tensor) else value
        for name, value in trial.arguments().items()
    }
    wanted: list[str] = []
    if trial.backward:
        for name in case.gradients:
            if isinstance(args[name], Tensor) and args[name].is_floating_point():
                args[name].requires_grad_()
                wanted.append(name)
    result = case.run(**args)
    more: dict[str, Any] = {
        name: args[name].detach().clone() for name in case.inplace if isinstance(args[name], Tensor)
    }
    if wanted:
        outs = [part for _, part in leaves(result) if isinstance(part, Tensor) and part.requires_grad]
        grads = [arriving(out, trial.backward) for out in outs]
        found = torch.autograd.grad(outs, [args[n] for n in wanted], grads, allow_unused=True) if outs else ()
        more |= {f"gradient of {name}": grad for name, grad in zip(wanted, found, strict=bool(outs))}
    return result, more, args


def arriving(out: Tensor, how: str) -> Tensor:
    """A gradient of a result, as an expanded or a strided tensor."""
    if how == "expanded":
        return torch.full((), 0.75, dtype=out.dtype, device=out.device).expand(out.shape)
    wide = torch.arange(2 * out.numel(), device=out.device).double().cos().to(out.dtype)
    return wide[::2].reshape(out.shape[::-1]).permute(tuple(range(out.ndim))[::-1])


def refusal(error: Exception, args: Args) -> str:
    """Why an exception is not a clear refusal, or ""."""
    if isinstance(error, RaymineError):
        return ""
    if isinstance(error, (TypeError, ValueError)) and any(f"`{name}`" in str(error) for name in args):
        return ""
    return f"{type(error).__name__}: {str(error)[:300]}"


def judge(trial: Trial, memory: GuardedMemory) -> tuple[str, str]:
    """-> verdict, and what happened."""
    guards = Guards()
    memory.buffers.clear()
    try:
        result, more, args = attempt(trial, guards)
    except Exception as error:
        touched = guards.touched() or memory.touched()
        bad = touched or refusal(error, trial.arguments())
        return ("failed", bad) if bad else ("refused", str(error))
    touched = guards.touched() or memory.touched()
    if touched:
        return "failed", touched
    if trial.case.holds is not None:
        on_meta = any(isinstance(part, Tensor) and part.device.type == "meta" for _, part in leaves((result, args)))
        bad = "" if on_meta else trial.case.holds(args, result)
        return ("failed", bad) if bad else ("answered", "")
    try:
        with dispatch.force("reference"):
            expected, expected_more, _ = attempt(trial, Guards())
    except Exception as error:
        return "failed", f"answered, but the reference raises {type(error).__name__}: {str(error)[:300]}"
    close = trial.case.close
    if not (all_finite(args) and all_finite((expected, expected_more))):
        close = float("inf")
    bad = difference(result, expected, close) or difference(more, expected_more, close)
    if not bad and all_finite((result, more)) and not all_finite((expected, expected_more)):
        bad = "the result is finite, but that of the reference is not"
    return ("failed", bad) if bad else ("answered", "")


def all_finite(value: Any) -> bool:
    """Whether no tensor and no number in a value is NaN or infinite."""
    for _, part in leaves(value):
        if isinstance(part, Tensor):
            if part.device.type != "meta" and not bool(part.isfinite().all()):
                return False
        elif isinstance(part, float) and not math.isfinite(part):
            return False
    return True


def main(suite: str, first: int) -> None:
    """Run the trials from number `first` on."""
    # What the callables print goes to stderr, so that stdout carries the protocol alone.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Numba registers NumPy's functions at its first compilation, which must see the real ones.
    numba.njit(lambda: np.empty(1).sum() + np.full(1, 0).sum() + np.empty_like(np.zeros(1)).sum())()
    memory = GuardedMemory()

    def say(**words: Any) -> None:
        channel.write(json.dumps(words) + "\n")

    every: list[Trial] = [trial for part in suite.split("+") for trial in suite_trials(part)]
    say(ready=len(every))
    for trial in every[first:]:
        say(begin=trial.name)
        verdict, note = judge(trial, memory)
        say(verdict=verdict, note=note)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
