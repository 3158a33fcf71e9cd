"""The Python API: train, load, render, density, evaluate, and errors of wrong arguments."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import raymine
from raymine import api
from raymine.cameras import look_at
from raymine.cli import main
from raymine.contracts import Camera
from raymine.errors import ConfigError, RaymineError, RunError
from raymine.experiment import ProgressObserver, RunResult, TrainRequest
from raymine.scenes import builtin
from support.scene_writers import ring, write_colmap

DOCS = Path(__file__).parents[1] / "docs"
SMALL = {"size": 64, "train_views": 5, "test_views": 2}


@pytest.fixture(scope="module")
def small_builtin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The built-in scene with fewer and smaller views, which takes a second to create."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtin, "builtin_scene", functools.partial(builtin.builtin_scene, **SMALL))
        patch.setenv("RAYMINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def run(small_builtin: None, tmp_path_factory: pytest.TempPathFactory) -> raymine.Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    return raymine.train("builtin", steps=3, downscale=4, device="cpu", out=str(out), progress=False)


@pytest.fixture(autouse=True)
def _own_cache(small_builtin: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share one cache among all tests of this file, and give each test its own working folder."""
    monkeypatch.chdir(tmp_path)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light_and_names_load_on_first_use() -> None:
    python(
        "import sys, raymine\n"
        "names = dir(raymine)\n"
        "assert {'train', 'load', 'look_at', 'Camera', 'toolkit', 'scenes', '__version__'} <= set(names), names\n"
        "assert '_version' not in names\n"
        "assert not hasattr(raymine, 'no_such_name') and not hasattr(raymine, '__wrapped__')\n"
        "assert not {'torch', 'numpy', 'numba'} & set(sys.modules)\n"
        "assert raymine.errors.ConfigError and 'torch' not in sys.modules\n"
        "assert raymine.toolkit.__name__ == 'raymine.toolkit' and 'raymine.experiment' not in sys.modules\n"
        "assert raymine.look_at is raymine.cameras.look_at and raymine.Camera is raymine.contracts.Camera\n"
        "assert raymine.train.__module__ == raymine.load.__module__ == raymine.Run.__module__ == 'raymine.api'\n"
        "import torch\n"
        "assert not torch.cuda.is_initialized() and 'numba' not in sys.modules\n"
    )


def test_names_in_the_docs_resolve_after_import_raymine() -> None:
    """`import raymine; raymine.toolkit.occupancy.OccupancyEstimator` works without a further import."""
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    names = set(re.findall(r"\braymine(?:\.[A-Za-z]\w*)+", text))
    names |= {f"raymine.toolkit.{name}" for name in re.findall(r"\btoolkit\.([a-z_]+\.\w+)", text)}
    assert {"raymine.toolkit.occupancy", "raymine.mining.diagnose", "raymine.compat.nerfacc.install"} <= names
    failed = python(
        "import operator, raymine\n"
        f"for name in {sorted(names)}:\n"
        "    try:\n"
        "        operator.attrgetter(name.partition('.')[2])(raymine)\n"
        "    except AttributeError as error:\n"
        "        print(name, error)\n"
    )
    assert not failed


def test_train_returns_the_run_that_load_opens(run: raymine.Run) -> None:
    assert (run.step, run.path.name, run.config.recipe, str(run.device)) == (3, "run", "ngp", "cpu")
    assert run.scene.cameras[0].width == 16
    assert repr(run) == f"Run({str(run.path)!r}, step=3, recipe='ngp', device='cpu')"
    again = raymine.load(str(run.path), device="cpu")
    assert isinstance(again, raymine.Run)
    frame = run.scene.frames[0]
    assert np.array_equal(run.render(0, frame.pose).colour, again.render(0, frame.pose).colour)
    with pytest.warns(UserWarning, match="No view was held out, so nothing names a best checkpoint"):
        assert raymine.load(run.path, checkpoint="best", device="cpu").step == 3


def test_train_applies_settings_and_resumes(
    run: raymine.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"downscale": 4, "device": "cpu", "out": tmp_path / "r"}
    settings = {"mining": "prune", "pixels": "uniform", "overrides": {"batch.samples": 512}, "seed": 3}
    first = raymine.train("builtin", steps=2, **options, **settings)
    err = capsys.readouterr().err
    assert "Training ngp for 2 steps" in err
    assert "Finished at step 2" in err
    train = first.config.train
    assert (train.mining.policy, train.pixels.policy, train.batch.samples, first.config.seed) == (
        "prune",
        "uniform",
        512,
        3,
    )
    assert raymine.train("builtin", steps=4, resume=True, progress=False, **options, **settings).step == 4
    assert capsys.readouterr() == ("", "")


def test_render_returns_colour_opacity_and_depth_and_saves_pictures(run: raymine.Run, tmp_path: Path) -> None:
    frame = run.scene.frames[0]
    view = run.render(0, frame.pose)
    assert (view.colour.shape, view.opacity.shape, view.depth.shape) == ((16, 16, 3), (16, 16), (16, 16))
    assert view.colour.dtype == view.opacity.dtype == view.depth.dtype == np.float32
    assert view.colour.min() >= 0
    assert view.colour.max() <= 1
    square = np.vstack([frame.pose, [0, 0, 0, 1]])
    for pose in (square, torch.from_numpy(frame.pose), frame.pose.tolist(), frame.pose.astype(np.float32)):
        assert np.allclose(run.render(np.int64(0), pose).colour, view.colour, atol=1e-5)
    camera = Camera(width=7, height=5, fx=9.0, fy=9.0, cx=3.5, cy=2.5)
    away = look_at(np.array([0.0, 0.0, 5.0]), np.array([0.0, 0.0, 9.0]), np.array([0.0, 1.0, 0.0]))
    empty = run.render(camera, away, background=(0.25, 0.5, 1.0))
    assert empty.colour.shape == (5, 7, 3)
    assert np.allclose(empty.colour, [0.25, 0.5, 1.0])
    assert empty.opacity.max() == empty.depth.max() == 0
    assert np.allclose(run.render(camera, away).colour, run.scene.background)
    for kind in ("colour", "depth", "opacity"):
        path = view.save(f"pictures/{kind}.png", kind=kind)  # type: ignore[arg-type]
        with Image.open(path) as picture:
            assert picture.size == (16, 16)
    with Image.open("pictures/colour.png") as picture:
        assert np.abs(np.asarray(picture) / 255 - view.colour).max() < 0.002


def test_density_is_positive_inside_and_zero_outside_the_box(run: raymine.Run) -> None:
    points = np.array([[0.0, 0.0, 0.0], [0.3, -0.2, 0.1], [50.0, 0.0, 0.0], [1.49, 0.0, 0.0], [1.51, 0.0, 0.0]])
    found = run.density(points)
    assert found.dtype == torch.float32
    assert found.shape == (5,)
    assert not found.requires_grad
    assert (found[[0, 1, 3]] > 0).all()
    assert (found[[2, 4]] == 0).all(), "nothing is rendered outside the box"
    assert torch.equal(run.density(torch.from_numpy(points)), found)
    assert torch.equal(run.density(points.tolist()), found)
    assert run.density(np.zeros((0, 3))).shape == (0,)


def test_evaluate_equals_the_eval_command(run: raymine.Run, capsys: pytest.CaptureFixture[str]) -> None:
    scores = run.evaluate()
    assert main(["eval", str(run.path), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["psnr"] == scores.psnr
    assert len(scores.views) == 2
    assert len(run.evaluate("train", views=3).views) == 3
    assert os.listdir() == []
    run.evaluate(views=1, out="scores", pictures="none")
    assert [path.name for path in Path("scores").iterdir()] == ["metrics.json"]
    run.evaluate(views=1, out="scores")
    assert sorted(os.listdir("scores")) == ["images", "metrics.json"]


@pytest.mark.parametrize(
    ("camera", "change", "words"),
    [
        (1, {}, "`camera` must be an index in 0 .. 0, got 1"),
        (-1, {}, "`camera` must be an index in 0 .. 0, got -1"),
        ("big", {}, "`camera` must be a camera, a frame or the index of one of the scene's, got str"),
        (np.eye(3, 4), {"pose": None}, r"`camera` must be .*, got ndarray.\n.*camera_at\(position, target\)"),
        (0, {"pose": None}, "`pose` is missing"),
        (0, {"pose": np.eye(3)}, r"`pose` must have shape \[3, 4\] or \[4, 4\], got \[3, 3\]"),
        (0, {"pose": "x"}, "`pose` must be an array of numbers"),
        (0, {"pose": [[1.0], [2.0, 3.0]]}, r"of numbers, with rows of one length, got \[\[1.0\], \[2.0, 3.0\]\]\."),
        (0, {"pose": [[10**400] * 4] * 3}, "`pose` must be an array of numbers"),
        (0, {"pose": 2 * np.eye(4)[:3]}, "`pose` is not rigid: its rotation is scaled by 2"),
        (0, {"pose": np.full((3, 4), np.nan)}, "`pose` contains NaN"),
        (0, {"pose": np.eye(4) + np.eye(4)[3]}, "last row of a .* must be 0 0 0 1"),
        (0, {"background": (1.0, 1.0)}, "`background` must be red, green and blue in 0..1, got"),
        (0, {"background": (255, 255, 255)}, r"`background` must be red, green and blue in 0..1, .*\nDivide by 255"),
        (0, {"background": "whit"}, "`background`: there is no colour 'whit'"),
        (0, {"background": "#ff00ff80"}, "`background`: there is no colour '#ff00ff80'"),
        (0, {"time": 2.0}, "`time` must be in 0..1, got 2"),
        (0, {"time": "now"}, "`time` must be a finite number, got 'now'"),
        (0, {"time": 0.5}, "`time` was given, and the frames of this scene have no times"),
        (0, {"size": "64x48"}, r"`size` must be \(width, height\) in pixels, such as \(320, 240\), got '64x48'"),
        (0, {"size": (64, 4.5)}, "`size` must be a whole number, got 4.5"),
        (0, {"size": (0, 48)}, "at least 1x1 pixels, got 0x48"),
        (0, {"size": (100_000, 100_000)}, r"such as 7680x4320; 100000x100000 is too large.\nGive a smaller `size`"),
    ],
)
def test_invalid_render_arguments_raise(run: raymine.Run, camera: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run.render(camera, **{"pose": np.eye(4)[:3], **change})


def test_a_camera_of_the_files_own_world_renders_the_frame(tmp_path: Path) -> None:
    """A COLMAP scene is centred, turned and scaled; its own poses still lead to the same pictures."""
    capture = ring(count=9)
    scene = write_colmap(capture, tmp_path / "scene")
    overrides = {"batch.samples": 1024, "field.grid.log2_entries": 12}
    run = raymine.train(str(scene), steps=30, device=torch.device("cpu"), overrides=overrides, progress=False)
    assert not np.allclose(run.scene.normalisation, np.eye(4))
    centre = np.array([2.0, -1.0, 5.0])
    for frame in run.scene.frames[::4]:
        own = capture.opengl(capture.names.index(frame.image.name))
        expected = run.render(frame)
        assert expected.colour.std() > 0.01, "an empty picture would prove nothing"
        position = np.array(own)[:3, 3]
        views = (
            run.render(frame.camera, run.to_normalised(own)),
            run.render(run.camera_at(position, centre, up=(0, -1, 0))),
            run.render(0, run.to_normalised(raymine.look_at(position, centre, [0, -1, 0]).tolist())),
        )
        for view in views:
            assert np.abs(view.colour - expected.colour).max() < 1e-4
        np.testing.assert_allclose(run.from_normalised(frame.pose), np.array(own)[:3], atol=1e-9)
        at_centre = np.linalg.norm(position - centre) * run.scene.scale
        assert np.linalg.norm(frame.pose[:, 3] - run.to_normalised(centre)) == pytest.approx(at_centre)


def test_camera_at_takes_up_size_and_field_of_view(run: raymine.Run) -> None:
    level = run.camera_at((3.0, 0.0, 0.0), [0, 0, 0], size=(12, 8), fov=90)
    assert (level.camera.width, level.camera.height, level.camera.fy) == (12, 8, pytest.approx(4.0))
    np.testing.assert_allclose(level.pose, raymine.look_at([3, 0, 0], [0, 0, 0]), atol=1e-12)
    np.testing.assert_allclose(run.camera_at((3, 0, 0), (0, 0, 0), up=(0, 1, 0)).pose[:, 1], [0, 1, 0], atol=1e-12)
    view = run.render(level, background="white")
    assert repr(view).startswith("View(12x8, mean opacity ")
    assert run.render(run.scene.frames[0], size=(6, 4)).colour.shape == (4, 6, 3)
    for wrong, words in (
        ({"fov": 180}, "`fov` is the vertical field of view in degrees, 1 to 170; got 180"),
        ({"fov": "wide"}, "`fov` must be a finite number, got 'wide'"),
        ({"position": (1, 2)}, "`position` must be three finite numbers"),
        ({"position": (0, 0, 0)}, "`target` must differ from `position`"),
        ({"target": "there"}, "`target` must be an array of numbers"),
        ({"size": 64}, "`size` must be "),
    ):
        with pytest.raises(ConfigError, match=words):
            run.camera_at(**{"position": (3, 0, 0), "target": (0, 0, 0), **wrong})
    with pytest.raises(ConfigError, match="`pose` cannot be given"):
        run.render(level, level.pose)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scene": None}, "`scene` must be a path .*, got None"),
        ({"out": 3}, "`out` must be a path .*, got 3"),
        ({"steps": "10"}, "`steps` must be a whole number, got '10'"),
        ({"steps": 2.5}, "`steps` must be a whole number, got 2.5"),
        ({"steps": True}, "`steps` must be a whole number, got True"),
        ({"seconds": "10"}, "`seconds` must be a finite number, got '10'"),
        ({"seconds": float("nan")}, "`seconds` must be a finite number, got nan"),
        ({"seed": "a"}, "`seed` must be a whole number"),
        ({"downscale": 1.5}, "`downscale` must be a whole number"),
        ({"leave_out": 3}, "`leave_out` must be a text or a list of texts, got 3"),
        ({"allow": None}, "`allow` must be a text or a list of texts, got None"),
        ({"hold_out": [3]}, "`hold_out` must be a whole number"),
        ({"mining": 3}, "`mining`: there is no policy `3`"),
        ({"overrides": ["mining"]}, "`overrides` must be a dict"),
        ({"device": 0}, "`device='0'`"),
    ],
)
def test_train_names_an_argument_of_the_wrong_type(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        raymine.train(**{"scene": "builtin", "progress": False, **options})
    with pytest.raises(ConfigError, match="`run` must be a path"):
        raymine.load(None)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


def test_other_invalid_arguments_raise(run: raymine.Run, tmp_path: Path) -> None:
    for shape in ((3,), (4, 2), (2, 3, 3)):
        with pytest.raises(ConfigError, match=rf"`points` must have shape \[n, 3\], got {re.escape(str(list(shape)))}"):
            run.density(np.zeros(shape))
    with pytest.raises(ConfigError, match="`points` must be on cpu, where the run is, got meta"):
        run.density(torch.zeros(4, 3, device="meta"))
    with pytest.raises(ConfigError, match="`points` must be finite"):
        run.density([[0.0, float("nan"), 0.0]])
    view = run.render(0, run.scene.frames[0].pose)
    with pytest.raises(ConfigError, match=r"must end in \.png, got 'view.jpg'"):
        view.save("view.jpg")
    with pytest.raises(ConfigError, match="`kind` must be one of colour, depth, opacity"):
        view.save("view.png", kind="normals")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"`split='val'`: the scene .* has no such images"):
        run.evaluate("val")
    with pytest.raises(ConfigError, match="`views` must be at least 1, got 0"):
        run.evaluate(views=0)
    with pytest.raises(ConfigError, match="`views` must be a whole number, got '2'"):
        run.evaluate(views="2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`pictures` must be one of all, few, none, got 'some'"):
        run.evaluate(pictures="some")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`checkpoint` must be 'latest' or 'best', got 'first'"):
        raymine.load(run.path, checkpoint="first")  # type: ignore[arg-type]
    with pytest.raises(RunError, match="There is no run folder nowhere"):
        raymine.load("nowhere")
    for options, words in (
        ({"steps": 3, "seconds": 4.0}, r"^`steps=3` and `seconds=4.0` were both given"),
        ({"seconds": -1.0}, "^`seconds` must be a positive number"),
        ({"mining": "gold"}, "^`mining`: there is no policy `gold`"),
        ({"out": run.path, "steps": 3}, "already holds a run"),
        ({"recipe": "npg"}, "there is no recipe `npg`"),
        ({"recipe": 3}, "`recipe` must be a name, a function"),
    ):
        with pytest.raises(RaymineError, match=words):
            raymine.train("builtin", progress=False, device="cpu", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("code", "kind"), [(130, KeyboardInterrupt), (143, SystemExit)])
def test_stopped_training_raises_keyboard_interrupt_or_system_exit(
    code: int, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(request: TrainRequest, **_: object) -> RunResult:
        return RunResult(Path("r"), "stopped", code, 7, 1.0, None, None, None)

    monkeypatch.setattr(api, "train_request", stopped)
    with pytest.raises(kind) as caught:
        raymine.train("builtin", steps=9, progress=False)
    assert "stopped at step 7; r is saved" in str(caught.value) if code == 130 else caught.value.code == 143  # type: ignore[attr-defined]


def test_an_interrupted_run_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ProgressObserver.on_step

    def interrupt(self: Any, info: Any) -> None:
        real(self, info)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressObserver, "on_step", interrupt)
    with pytest.raises(KeyboardInterrupt, match="stopped at step 16"):
        raymine.train(
            "builtin", steps=40, downscale=4, device="cpu", out="r", overrides={"batch.samples": 256}, progress=True
        )
    assert raymine.load("r", device="cpu").step == 16


def test_python_documentation_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of docs/python.md, in one program, with fewer steps and smaller images."""
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "python.md").read_text(), re.DOTALL | re.MULTILINE)
    code = "\n".join(blocks)
    assert len(blocks) > 6
    options = 'downscale=8, device="cpu", progress=False'
    wrong_on_purpose = "steps=100, seconds=30"
    assert code.count("seconds=30") == 4
    assert code.count(wrong_on_purpose) == 1
    code = code.replace(wrong_on_purpose, "steps=100, seconds=31")
    code = code.replace("seconds=30", f"steps=2, {options}").replace("seconds=60", f"steps=3, {options}")
    code = code.replace("raymine.load(run.path)", 'raymine.load(run.path, device="cpu")')
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "docs/python.md", "exec"), names)
    for picture in ("view.png", "depth.png", "from_above.png", "small.png", "own_lens.png", "scores/metrics.json"):
        assert Path(picture).is_file()
    assert Path("same_view.png").read_bytes() == Path("view.png").read_bytes()
    assert names["run"].config.train.batch.samples == 1 << 13
    assert sorted(os.listdir("runs")) == ["builtin-ngp-1", "builtin-ngp-2", "builtin-small_steps-1"]


def test_poses_and_exposures_are_fitted_from_python(tmp_path: Path) -> None:
    run = raymine.train(
        "builtin",
        steps=3,
        downscale=4,
        device="cpu",
        out=tmp_path / "refined",
        refine_poses=True,
        exposure=True,
        overrides={"poses.lr": 2e-3},
        progress=False,
    )
    assert run.config.train.poses is not None
    assert run.config.train.poses.lr == 2e-3
    assert run.config.train.exposure is not None
    given = np.stack([frame.pose for frame in run.scene.frames if frame.split == "train"])
    assert 0 < np.abs(run.training_poses - given).max() < 0.1
    scores = run.evaluate(views=1, fit="exposure")
    assert scores.fitted is not None
    assert len(scores.fitted.views) == len(scores.views) == 1
    assert run.evaluate(views=1).fitted is None
    with pytest.raises(ConfigError, match="`fit` must be one of poses, exposure, both, got 'all'"):
        run.evaluate(fit="all")  # type: ignore[arg-type]
