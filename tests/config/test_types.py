"""Open config fields: any frozen dataclass by its import path; only allowed packages are imported."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from raymine.config import (
    ForeignTypeError,
    allowing,
    differences,
    from_json,
    packages_to_allow,
    replace_fields,
    to_json,
)
from raymine.config.types import import_path, resolve
from raymine.errors import ConfigError, speaking_of_flags


class Shape(Protocol):
    """The protocol of the open fields in these tests."""

    sides: int

    def area(self) -> float: ...


@dataclass(frozen=True)
class Square:
    side: float = 1.0
    sides: int = 4

    def area(self) -> float:
        return self.side**2


@dataclass(frozen=True)
class Disc:
    radius: float = 1.0

    @property
    def sides(self) -> int:
        return 0

    def area(self) -> float:
        return 3.0 * self.radius**2

    def __post_init__(self) -> None:
        if self.radius <= 0:
            raise ValueError("the radius must be positive")


@dataclass(frozen=True)
class Picture:
    shape: Shape = dataclasses.field(default_factory=Square)
    more: tuple[Shape, ...] = ()
    listed: list[Shape] = dataclasses.field(default_factory=list)
    pair: tuple[int, Shape] = (0, Square())
    named: dict[str, Shape] = dataclasses.field(default_factory=dict)
    extra: Shape | None = None
    choices: tuple[Square | Disc, ...] = ()
    scale: float = 1.0


@dataclass(frozen=True)
class Typed:
    type: str = "x"
    sides: int = 1

    def area(self) -> float:
        return 0.0


@dataclass
class Melting:
    sides: int = 1

    def area(self) -> float:
        return 0.0


@dataclass(frozen=True)
class NoArea:
    sides: int = 1


class Outer:
    @dataclass(frozen=True)
    class Inner:
        sides: int = 1


HERE = __name__
SQUARE, DISC = f"{HERE}:Square", f"{HERE}:Disc"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `strange_shapes` that creates a file when it is imported; returns the path of that file."""
    folder = tmp_path / "strange_shapes"
    folder.mkdir()
    imported = tmp_path / "imported"
    (folder / "__init__.py").write_text(f"open({str(imported)!r}, 'w').close()\n")
    (folder / "flat.py").write_text(
        "from dataclasses import dataclass\n\n\n"
        "@dataclass(frozen=True)\nclass Flat:\n    width: int = 2\n    sides: int = 1\n\n"
        "    def area(self):\n        return 0.0\n\n\n"
        "class Plain:\n    pass\n"
    )
    (folder / "broken.py").write_text("import json\n\nvalue = undefined_name\n")
    (folder / "quits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield imported
    for name in [n for n in sys.modules if n.partition(".")[0] == "strange_shapes"]:
        del sys.modules[name]


FLAT = {"shape": {"type": "strange_shapes.flat:Flat", "width": 5}}


def test_open_fields_round_trip_by_import_path() -> None:
    value = Picture(
        shape=Disc(2.0),
        more=(Square(3.0), Disc(0.5)),
        listed=[Disc(4.0)],
        pair=(7, Disc(8.0)),
        named={"a": Square(9.0)},
        extra=Square(5.0),
        choices=(Square(), Disc()),
    )
    data = json.loads(json.dumps(to_json(value)))
    assert data["shape"] == {"type": DISC, "radius": 2.0}
    assert [item["type"] for item in (*data["more"], *data["listed"], data["pair"][1])] == [SQUARE, DISC, DISC, DISC]
    assert data["named"]["a"]["type"] == data["extra"]["type"] == SQUARE
    assert [item["type"] for item in data["choices"]] == ["Square", "Disc"], "a closed choice needs no path"
    assert from_json(Picture, data) == value
    assert from_json(Picture, to_json(Picture())) == Picture()


def test_to_json_rejects_classes_that_cannot_be_read_back() -> None:
    @dataclass(frozen=True)
    class Local:
        sides: int = 1

    with pytest.raises(ConfigError, match=r"`Outer.Inner` .* inside a class or a function") as caught:
        to_json(Picture(shape=Outer.Inner()))  # type: ignore[arg-type]
    assert "at the top of a module" in caught.value.hint
    with pytest.raises(ConfigError, match=r"<locals>.Local` .* inside a class or a function"):
        to_json(Picture(more=(Local(),)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^shape: `Melting` must be a frozen dataclass"):
        to_json(Picture(shape=Melting()))
    with pytest.raises(ConfigError, match=r"^shape: `Typed` has a field `type`"):
        to_json(Picture(shape=Typed()))
    with pytest.raises(ConfigError, match=r"^more\[0\]: must be a frozen dataclass, got int"):
        to_json(Picture(more=(3,)))  # type: ignore[arg-type]


def test_path_of_a_redefined_class_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Square(2.0)
    monkeypatch.setattr(sys.modules[HERE], "Square", Disc)
    with pytest.raises(ConfigError, match="is another class by now"):
        import_path(type(old))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"type": "Square"}, r"^shape\.type: must look like package\.module:ClassName, got 'Square'"),
        ({"type": f"{HERE}:Outer.Inner"}, r"^shape\.type: must look like"),
        ({"type": "os:system('x')"}, r"^shape\.type: must look like"),
        ({"type": 3}, r"^shape\.type: must be a class such as .* got 3"),
        ({"side": 3.0}, r"^shape\.type: must be a class such as .* got None"),
        (3, r"^shape: must be an object, got 3"),
        ({"type": f"{HERE}:Sqare"}, r"^shape: .* does not define \(did you mean `Square`\?\)"),
        ({"type": "__main__:NowhereAtAll"}, "the script that is running does not define"),
        ({"type": f"{HERE}:Melting"}, r"^shape: `.*:Melting` must be a frozen dataclass"),
        ({"type": "os:getcwd"}, r"^shape: `os:getcwd` must be a frozen dataclass"),
        ({"type": f"{HERE}:NoArea"}, r"^shape: `.*:NoArea` is no Shape: it has no area"),
        ({"type": SQUARE, "sid": 3.0}, r"^shape\.sid: no such setting"),
        ({"type": SQUARE, "side": "x"}, r"^shape\.side: must be a number"),
        ({"type": DISC, "radius": -1.0}, r"^shape: the radius must be positive"),
        ({"type": "raymine.no_such_module:Config"}, r"there is no module `raymine\.no_such_module`"),
    ],
)
def test_from_json_rejects_invalid_types_and_values(shape: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_json(Picture, {"shape": shape})


def test_raymine_itself_is_always_allowed() -> None:
    found = resolve("raymine.kernels.hash_grid.spec:GridSpec", (), "grid")
    assert found.__name__ == "GridSpec"


def test_foreign_package_is_not_imported_unless_allowed(package: Path) -> None:
    with pytest.raises(ForeignTypeError) as caught:
        from_json(Picture, FLAT)
    assert caught.value.message == (
        "shape: the config wants the class `strange_shapes.flat:Flat`, and importing `strange_shapes.flat` runs its "
        "code; if you trust it, allow that with `allow='strange_shapes'`."
    )
    with speaking_of_flags(), pytest.raises(ForeignTypeError, match="allow that with --allow strange_shapes"):
        from_json(Picture, FLAT)
    with allowing(["strange", "strange_shapes.other", "shapes"]), pytest.raises(ForeignTypeError):
        from_json(Picture, FLAT)
    assert not package.exists()
    assert "strange_shapes" not in sys.modules


@pytest.mark.parametrize("names", ["strange_shapes", ("strange_shapes",), ["x", "strange_shapes.flat"]])
def test_allowed_package_is_imported_and_stays_usable(package: Path, names: str | list[str]) -> None:
    with allowing(names):
        value = from_json(Picture, FLAT)
    assert package.exists()
    assert to_json(value)["shape"] == {"type": "strange_shapes.flat:Flat", "width": 5, "sides": 1}
    # It is imported already, so looking it up runs no code.
    assert from_json(Picture, FLAT) == value


def test_a_package_with_registered_recipes_is_allowed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("flat", "strange_shapes.recipes:flat", "raymine.recipes")

    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        return [entry] if group == "raymine.recipes" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert from_json(Picture, FLAT).shape.width == 5  # type: ignore[attr-defined]


def test_packages_to_allow_lists_foreign_packages_only(package: Path) -> None:
    with allowing("strange_shapes"):
        value = from_json(Picture, {**FLAT, "more": [{"type": SQUARE}, {"type": DISC}]})
    assert packages_to_allow(to_json(value)) == sorted(["strange_shapes", HERE.partition(".")[0]])
    plain = {"train": {"field": {"type": "raymine.fields.hash_field:HashFieldConfig"}, "kind": {"type": "Net"}}}
    assert packages_to_allow(plain) == packages_to_allow({"type": "__main__:X"}) == []


def test_failing_import_of_allowed_module_reports_cause_and_line(package: Path) -> None:
    def load(path: str) -> str:
        with allowing("strange_shapes"), pytest.raises(ConfigError) as caught:
            from_json(Picture, {"shape": {"type": path}})
        return str(caught.value)

    assert "there is no module `strange_shapes.missing`" in load("strange_shapes.missing:X")
    text = load("strange_shapes.broken:X")
    assert "importing `strange_shapes.broken` failed: NameError: name 'undefined_name' is not defined" in text
    assert "broken.py, line 3)" in text
    assert "failed: SystemExit: 3" in load("strange_shapes.quits:X")
    assert "must be a frozen dataclass" in load("strange_shapes.flat:Plain")


@pytest.mark.parametrize("name", ["", "my package", "../x", "a:b", ".a"])
def test_allowing_rejects_invalid_package_names(name: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a package"), allowing([name]):
        pass


def test_replace_fields_sets_open_fields_as_a_whole_and_by_path() -> None:
    picture = Picture(shape=Square(2.0), more=(Square(), Disc(3.0)))
    assert replace_fields(picture, {"shape.side": 3.0}).shape == Square(3.0)
    assert replace_fields(picture, {"shape": Disc(2.0)}).shape == Disc(2.0)
    assert replace_fields(picture, {"shape": {"type": DISC, "radius": 2.0}}).shape == Disc(2.0)
    assert replace_fields(picture, {"shape": Disc(2.0), "shape.radius": 4.0}).shape == Disc(4.0)
    assert replace_fields(picture, {"more": (Disc(1.5),)}).more == (Disc(1.5),)
    assert replace_fields(picture, {"more[1].radius": 5.0}).more == (Square(), Disc(5.0))
    assert replace_fields(picture, {"more[0]": Disc(5.0)}).more == (Disc(5.0), Disc(3.0))
    for wrong in ("more[2].radius", "more[1].side", "more.radius", "shape.radius", "more[1", "more..radius", "", "[0]"):
        with pytest.raises(ConfigError, match="There is no setting"):
            replace_fields(picture, {wrong: 1.0})
    with pytest.raises(ConfigError) as caught:
        replace_fields(picture, {"more[1].radios": 1.0})
    assert "more[1].radius" in caught.value.hint


def test_differences_descend_into_lists_of_open_fields() -> None:
    before, after = to_json(Picture(more=(Disc(1.0),))), to_json(Picture(more=(Disc(2.0),), shape=Disc()))
    assert differences(before, after) == [
        f'shape.type: "{SQUARE}" in the run, "{DISC}" asked',
        "shape.side: 1.0 in the run, absent asked",
        "shape.sides: 4 in the run, absent asked",
        "more[0].radius: 1.0 in the run, 2.0 asked",
        "shape.radius: absent in the run, 1.0 asked",
    ]
