"""Notices when a kernel is compiled. That happens once on a machine: later runs load kernels from a cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from raymine.kernels import dispatch


@contextmanager
def on_first_compile(callback: Callable[[], None], device: str = "auto") -> Iterator[None]:
    """Within the block, call `callback` once, when a kernel is compiled instead of loaded from the cache on disk.

    device: "cpu", "cuda" or "auto". Work on CUDA need not use Numba, so this does not import it there (0.5 s).

    Numba tells when the first compilation starts, Triton when it ends. Versions of Triton without
    `knobs.compilation.listener` (before 3.4) tell nothing.
    """
    told = False

    def tell() -> None:
        nonlocal told
        if not told:
            told = True
            callback()

    with ExitStack() as stack:
        on_cuda = device != "cpu" and not dispatch.triton_problem()
        if on_cuda:
            stack.enter_context(_triton_compiles(tell))
        elif not dispatch.numba_problem():
            stack.enter_context(_numba_compiles(tell))
        yield


@contextmanager
def _numba_compiles(tell: Callable[[], None]) -> Iterator[None]:
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc,unused-ignore]
        def on_start(self, event: Any) -> None:
            tell()

        def on_end(self, event: Any) -> None:
            return

    with event.install_listener("numba:compile", Listener()):
        yield


@contextmanager
def _triton_compiles(tell: Callable[[], None]) -> Iterator[None]:
    import triton

    options: Any = getattr(getattr(triton, "knobs", None), "compilation", None)
    if not hasattr(options, "listener"):
        yield
        return
    earlier = options.listener

    def listen(*, cache_hit: bool, **details: Any) -> None:
        if not cache_hit:
            tell()
        if earlier is not None:
            earlier(cache_hit=cache_hit, **details)

    options.listener = listen
    try:
        yield
    finally:
        options.listener = earlier
