"""Check the options of the stages of a pipeline, and of the trials of a sweep, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raymine.errors import ConfigError, did_you_mean
from raymine.files import JSON

from ..flags import flags_of, is_repeatable, require_valid

if TYPE_CHECKING:
    from raymine.pipeline import Pipeline, Task


def require_commands(pipeline: Pipeline, tasks: list[Task]) -> None:
    """Raise `ConfigError` for a stage whose command this version does not have, and for an option that it lacks, that
    the pipeline gives itself, or whose value does not fit."""
    from raymine.pipeline import STAGES

    from ..app import COMMANDS

    for task in tasks:
        if task.name not in STAGES:
            continue
        if task.name not in COMMANDS:
            raise ConfigError(
                f"{pipeline.file}: the stage `{task.name}` needs the command `raymine {task.name}`, which this version "
                "of raymine does not have.",
                hint="Leave the stage out of `stages`, or install a version that has it.",
            )
        known = [flag.removeprefix("--").replace("-", "_") for flag in flags_of(COMMANDS[task.name]) if flag[1] == "-"]
        for name, value in task.scene.options.get(task.name, {}).items():
            if name not in known:
                raise ConfigError(
                    f"{pipeline.file}: `raymine {task.name}` has no option `{name}`.{did_you_mean(name, known)}",
                    hint=f"Options: raymine {task.name} --help",
                )
            if name in STAGES[task.name].fixed:
                where = "Give `downscale` to the scene, outside of the tables." if name == "downscale" else "Remove it."
                raise ConfigError(
                    f"{pipeline.file}: [{task.name}] may not set `{name}`; the pipeline does.", hint=where
                )
            require_fits(f"{pipeline.file}: [{task.name}]", task.name, name, value, COMMANDS)


def require_sense(pipeline: Pipeline, tasks: list[Task]) -> None:
    """Raise `ConfigError` for options of a stage that its command would refuse, whatever the scene or the run is.

    That is for commands with a method `check`. It imports torch, which takes a second.
    """
    from raymine.pipeline.run import words_of
    from raymine.pipeline.stages import EXPORTED

    from ..app import COMMANDS, parse

    for task in tasks:
        options = dict(task.scene.options.get(task.name, {}))
        if task.name == "export":
            named = options.get("to", EXPORTED)
            names = named if isinstance(named, list) else [named]
            options["to"] = [str(task.folder / "export" / name) for name in names]
        if hasattr(COMMANDS.get(task.name), "check"):
            command: Any = parse(task.name, ["argument", *words_of(options)])
            try:
                command.check()
            except ConfigError as error:
                raise ConfigError(f"{pipeline.file}: [{task.name}] {error.message}", hint=error.hint) from error


def require_fits(where: str, stage: str, name: str, value: JSON, commands: dict[str, type]) -> None:
    """Raise `ConfigError` unless the value fits the option `name`, which the command `stage` has.

    It says what the command would say, before it runs. where: the file and its table. commands: all of them by name.
    """
    try:
        _require_fits(stage, name, value, commands)
    except ConfigError as error:
        raise ConfigError(f"{where} {error.message}", hint=error.hint) from error


def _require_fits(stage: str, name: str, value: JSON, commands: dict[str, type]) -> None:
    from raymine.pipeline.run import words_of

    command, flag = commands[stage], "--" + name.replace("_", "-")
    switch = flags_of(command)[flag] is bool
    if isinstance(value, bool) != switch:
        rule = "true or false" if switch else "a value"
        raise ConfigError(
            f"`{name}` must be {rule}, got {str(value).lower()}.", hint=f"Options: raymine {stage} --help"
        )
    if isinstance(value, list) and not is_repeatable(command, flag):
        raise ConfigError(f"`{name}` takes one value, got {value!r:.80}.", hint=f"Options: raymine {stage} --help")
    require_valid(stage, ["argument", *words_of({name: value})], command, commands)
