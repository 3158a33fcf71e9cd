"""Standard output and error that take any text and do not fail in the middle of the work.

Messages and progress go to stderr: if it is closed or its disk is full, they are dropped, and the work goes on. Results
go to stdout: if they cannot be written, a `ResourceError` says so. Characters that the terminal cannot show are written
as escapes such as \\xe9, and bytes of a file name that are not text as these bytes.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO, cast

from raymine.errors import ResourceError

_ESCAPES = "raymine_escapes"


def _escape(error: UnicodeError) -> tuple[str | bytes, int]:
    """The error handler of both streams, for `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    # Python reads a byte b of a file name that is not UTF-8 as the character 0xdc00 + b.
    if all("\udc80" <= character <= "\udcff" for character in text):
        return bytes(ord(character) - 0xDC00 for character in text), error.end
    return codecs.backslashreplace_errors(error)


codecs.register_error(_ESCAPES, _escape)


class _Stream:
    """A text stream around another one, or around None, which is what Python has for a closed one."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def write(self, text: str) -> int:
        try:
            if self._stream is None:
                raise OSError("it is closed")
            self._stream.write(text)
        except (OSError, ValueError) as error:
            self._failed(error)
        return len(text)

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        raise NotImplementedError


class Messages(_Stream):
    """stderr: what cannot be written is dropped."""

    def _failed(self, error: Exception) -> None:
        discard(self._stream)
        self._stream = open(os.devnull, "w", errors="replace")  # noqa: SIM115 (kept until the process ends)


class Results(_Stream):
    """stdout: what cannot be written is a `ResourceError`; a reader that has gone stays a `BrokenPipeError`.

    What other threads print goes to stderr: packages that run beside a command must not mix into its results.
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        return super().write(text) if threading.get_ident() == self._thread else sys.stderr.write(text)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, BrokenPipeError):
            raise error
        discard(self._stream)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ResourceError(f"The result cannot be written to standard output: {reason}.") from error


def discard(stream: TextIO | None) -> None:
    """Send what a stream still holds to nowhere, so that Python does not fail on it again when the process ends."""
    # A stream that is closed, or that is no file, holds nothing that could fail.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, cast("TextIO", stream).fileno())
        finally:
            os.close(nowhere)


@contextlib.contextmanager
def guarded_streams() -> Iterator[None]:
    """Within the block, `sys.stdout` and `sys.stderr` are a `Results` and a `Messages`."""
    _reserve_descriptors()
    before = sys.stdout, sys.stderr
    with _escaping(before[0]), _escaping(before[1]):
        sys.stdout, sys.stderr = cast("TextIO", Results(before[0])), cast("TextIO", Messages(before[1]))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _escaping(stream: TextIO | None) -> Iterator[None]:
    """Within the block, the stream writes what it cannot encode as escapes."""
    reconfigure, errors = getattr(stream, "reconfigure", None), getattr(stream, "errors", None)
    if reconfigure is None:
        yield
        return
    reconfigure(errors=_ESCAPES)
    try:
        yield
    finally:
        # A failed write leaves text behind, on which this fails again.
        with contextlib.suppress(OSError, ValueError):
            reconfigure(errors=errors)


def _reserve_descriptors() -> None:
    """Open descriptors 0, 1 and 2 where they are closed: else the next file gets such a number, and prints go there."""
    opened = os.open(os.devnull, os.O_RDWR)
    while opened <= 2:
        # `open` takes the lowest free number.
        opened = os.open(os.devnull, os.O_RDWR)
    os.close(opened)
