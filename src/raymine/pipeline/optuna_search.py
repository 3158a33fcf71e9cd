"""Points that Optuna chooses one after the other, from the scores of those before (tree-structured Parzen estimator).

Its study, an SQLite file in the folder of the sweep, is the list of points, and is never ahead of the trials: a point
is in it before it is trained, and told once all of its trials have finished. So a sweep that was killed goes on with
the points that were asked for and not told. The sampler is seeded with the number of points before and of attempts to
find a new one, not with a state that a kill would lose. The TPE sampler ignores points that were left out, and after a
kill their attempts are repeated with the same outcome: a sweep of one trial at a time asks for the same points whether
it was interrupted or not, also within a request.
"""

from __future__ import annotations

import contextlib
import json
import random
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raymine.errors import MissingExtraError, RunError

from .prune import Look
from .sweep_spec import Point, Range, Sweep, size_of

if TYPE_CHECKING:
    import optuna

STUDY = "optuna.db"
_NAME = "sweep"
_GUIDED, _MOST_ASKED = 10, 1000
"""After 10 repeated points, draw at random; after 1000, give up."""


class OptunaSearch:
    """The points of a sweep with the search `optuna`. points: those asked for so far, also by earlier processes."""

    def __init__(self, sweep: Sweep) -> None:
        self._optuna = require_optuna()
        self._sweep = sweep
        self._file = sweep.out / STUDY
        with _answering(self._optuna, self._file):
            self._storage = self._optuna.storages.RDBStorage(_url(self._file))
            self._study = self._optuna.create_study(
                storage=self._storage, study_name=_NAME, direction="maximize", load_if_exists=True
            )
            self._study_id = self._storage.get_study_id_from_name(_NAME)
        self._state = self._optuna.trial.TrialState
        self._space = {name: self._distribution(values) for name, values in sweep.space.items()}
        self.points: list[Point] = []
        self._seen: set[str] = set()
        self._numbers: list[int] = []
        self._told: set[int] = set()
        self._exhausted = False
        with self._answering():
            trials = self._study.get_trials(deepcopy=False)
        found = _points_of(sweep, trials)
        for trial in trials:
            if trial.number in found:
                self._keep(trial.number, found[trial.number])
                if trial.state != self._state.RUNNING:
                    self._told.add(len(self.points) - 1)
            elif trial.state != self._state.FAIL:
                # A kill came before all of its settings were stored, or before it was found to be an old one.
                self._drop(trial.number)

    def ask(self) -> Point | None:
        """A new point, which becomes the last of `points`; None if there are enough, or if the space has no more.

        Points without a score yet count as bad ones, so that trials at the same time do not try the same region.
        """
        while not self._exhausted and len(self.points) < min(self._sweep.trials, size_of(self._sweep.space)):
            for attempt in range(_MOST_ASKED):
                with self._answering():
                    self._study.sampler = self._sampler(attempt)
                    trial = self._study.ask(self._space)
                point = _point(self._sweep, trial.params)
                if repr(point) not in self._seen:
                    self._keep(trial.number, point)
                    return point
                self._drop(trial.number)
            self._exhausted = True
        return None

    def tell(self, index: int, score: float | None, stop: Look | None = None) -> None:
        """Tell how a point ended, unless that was told before. index: in `points`. score: PSNR (dB), more is better.

        stop: where it was pruned, if it has no score.
        """
        if index in self._told or (score is None and stop is None):
            return
        number = self._numbers[index]
        with self._answering():
            if score is not None:
                self._study.tell(number, score)
            elif stop is not None:
                identity = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
                self._storage.set_trial_intermediate_value(identity, stop.step, stop.psnr)
                self._study.tell(number, state=self._state.PRUNED)
        self._told.add(index)

    def _keep(self, number: int, point: Point) -> None:
        """Make a new point the last of `points`."""
        self._seen.add(repr(point))
        self.points.append(point)
        self._numbers.append(number)

    def _drop(self, number: int) -> None:
        """Leave a point out, which is not trained. What was told of others stays as it is."""
        with self._answering():
            self._study.tell(number, state=self._state.FAIL)

    def _distribution(self, values: list[Any] | Range) -> optuna.distributions.BaseDistribution:
        kinds = self._optuna.distributions
        if not isinstance(values, Range):
            # Optuna stores text, numbers and switches only; a value may be a list, too.
            return kinds.CategoricalDistribution([json.dumps(value) for value in values])
        if isinstance(values.low, int) and isinstance(values.high, int):
            return kinds.IntDistribution(values.low, values.high, log=values.log)
        return kinds.FloatDistribution(values.low, values.high, log=values.log)

    def _sampler(self, attempt: int) -> optuna.samplers.BaseSampler:
        seed = random.Random(f"{self._sweep.draw_seed}/{len(self.points)}/{attempt}").getrandbits(32)
        samplers = self._optuna.samplers
        guided = attempt < _GUIDED
        return samplers.TPESampler(seed=seed, constant_liar=True) if guided else samplers.RandomSampler(seed)

    def _answering(self) -> contextlib.AbstractContextManager[None]:
        return _answering(self._optuna, self._file)


def asked_points(sweep: Sweep) -> list[Point]:
    """The points of the study so far; [] if there is none. Changes nothing: another process may be using the study."""
    import sqlalchemy

    optuna, file = require_optuna(), sweep.out / STUDY
    if not file.exists():
        return []
    with _answering(optuna, file):
        engine = sqlalchemy.create_engine(_url(file))
        # Optuna makes this table last; without it, another process is about to make the study.
        ready = sqlalchemy.inspect(engine).has_table("alembic_version")
        engine.dispose()
        if not ready:
            return []
        storage = optuna.storages.RDBStorage(_url(file), skip_table_creation=True)
        studies = {study.study_name: study._study_id for study in storage.get_all_studies()}
        trials = storage.get_all_trials(studies[_NAME], deepcopy=False) if _NAME in studies else []
    return list(_points_of(sweep, trials).values())


def _points_of(sweep: Sweep, trials: Sequence[optuna.trial.FrozenTrial]) -> dict[int, Point]:
    """The points among these trials of Optuna by number, without those that were left out, or are not whole or new."""
    found: dict[int, Point] = {}
    seen: set[str] = set()
    for trial in trials:
        if trial.state.name != "FAIL" and len(trial.params) == len(sweep.space):
            point = _point(sweep, trial.params)
            if repr(point) not in seen:
                seen.add(repr(point))
                found[trial.number] = point
    return found


def _point(sweep: Sweep, params: dict[str, Any]) -> Point:
    return {
        name: params[name] if isinstance(values, Range) else json.loads(params[name])
        for name, values in sweep.space.items()
    }


@contextlib.contextmanager
def _answering(optuna: Any, file: Path) -> Iterator[None]:
    """Turn the errors of the study's file into one of raymine, and keep Optuna quiet."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    except (optuna.exceptions.OptunaError, SQLAlchemyError, RuntimeError, ValueError) as error:
        # A ValueError says that the study is not as it was left, such as that a point has ended already.
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"The study of Optuna in {file} cannot be used: {first[:200].rstrip('.')}.",
            hint="Make room or give permission if that is missing, and let no other program change the study; else "
            "give another `out`.",
        ) from error


def require_optuna() -> Any:
    """The module optuna; `MissingExtraError` if it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("optuna", "optuna", 'search = "optuna"') from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _url(file: Path) -> str:
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(file.absolute())).render_as_string(hide_password=False)
