"""The reader of pickled arrays returns arrays, and calls nothing that a pickle names."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from raymine.evaluate.lpips.unpickle import RefusedPickle, read_arrays


class Calls:
    """Pickled, this calls a function when it is read."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def test_nested_arrays_come_back() -> None:
    kernel = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = read_arrays(pickle.dumps({"net": {"conv": {"kernel": kernel}}, "bias": kernel[0].copy()}, protocol=3))
    assert found.keys() == {"net/conv/kernel", "bias"}
    assert np.array_equal(found["net/conv/kernel"], kernel)


def test_a_function_that_a_pickle_names_is_not_called(tmp_path: Path) -> None:
    target = tmp_path / "made"
    for call in (
        Calls(os.mkdir, str(target)),
        Calls(eval, "1"),
        Calls(np.load, str(target)),
        Calls(getattr, 1, "real"),
    ):
        with pytest.raises(RefusedPickle, match="it names"):
            read_arrays(pickle.dumps({"a": call}))
    assert not target.exists()


@pytest.mark.parametrize(
    "value",
    [
        {"a": np.zeros(3)},
        {"a": np.array(["x"], dtype=object)},
        {"a": 3},
        {1: np.zeros(3, np.float32)},
        [np.zeros(3, np.float32)],
        np.float32(1),
    ],
    ids=["float64", "objects", "number", "key", "list", "scalar"],
)
def test_anything_but_dicts_of_float32_arrays_is_refused(value: object) -> None:
    with pytest.raises(RefusedPickle):
        read_arrays(pickle.dumps(value))


def test_damaged_pickles_are_refused() -> None:
    data = pickle.dumps({"a": np.zeros(100, np.float32)})
    for cut in (0, 1, 20, len(data) // 2, len(data) - 1):
        with pytest.raises(RefusedPickle):
            read_arrays(data[:cut])
