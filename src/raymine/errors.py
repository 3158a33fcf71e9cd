"""Errors a user can act on. The lowest layer: it imports nothing of raymine.

Every message names the thing, the rule it broke, the value it had and what to do. The command line prints these
without a traceback and exits with `exit_code`; anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations


class RaymineError(Exception):
    """Something the user can fix. `exit_code` is what the command line returns."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint


class ConfigError(RaymineError, ValueError):
    """An option or a config value that cannot work."""

    exit_code = 2


class SceneError(RaymineError):
    """A scene folder that cannot be read."""

    exit_code = 3


class RunError(RaymineError):
    """A run folder that cannot be used: missing, locked, foreign or in the wrong state."""

    exit_code = 4


class CheckpointError(RunError):
    """A checkpoint that is damaged or belongs to another model or version."""


class ResourceError(RaymineError):
    """Not enough memory, disk space or permission."""

    exit_code = 5


class TrainingError(RaymineError):
    """Training cannot go on (for instance, it stays non-finite after every recovery)."""

    exit_code = 6


class MissingExtraError(RaymineError, ImportError):
    """An optional dependency is not installed."""

    exit_code = 7

    def __init__(self, package: str, extra: str, what: str) -> None:
        super().__init__(
            f"{what} needs the package `{package}`, which is not installed.",
            hint=f"Install it with: pip install 'raymine[{extra}]'",
        )
