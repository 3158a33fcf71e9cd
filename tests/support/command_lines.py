"""Command lines that are right or wrong in one way each, and a folder with the paths that they name.

A word in braces, such as `{long}`, stands for a path that is not typed easily; `Place.arguments` puts it in.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from raymine.cli import main
from support.disc_scene import write_scene_of_eight

TRAIN = "--recipe support.runs:tiny --device cpu"


@dataclass(frozen=True)
class Line:
    """A command line, its exit code, and words that its output must hold: of stdout for code 0, else of stderr."""

    text: str
    code: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Place:
    """A folder with a scene, a run `r` of it, and paths that are neither."""

    folder: Path

    @staticmethod
    def make(folder: Path) -> Place:
        """Write the folder, and train the run with the working folder there."""
        write_scene_of_eight(folder / "scene")
        os.mkfifo(folder / "pipe")
        (folder / "nowhere-link").symlink_to("nothing")
        (folder / "loop").symlink_to("loop")
        (folder / "empty").mkdir()
        (folder / "file").write_text("x")
        Path(os.fsdecode(os.fsencode(folder) + b"/r\xff")).mkdir()
        (folder / "odd").mkdir()
        (folder / "odd" / "manifest.json").write_text("[1]")
        pose = [[1, 0, 0, 0], [0, 0, -1, -4], [0, 1, 0, 0], [0, 0, 0, 1]]
        path = json.dumps({"frames": [{"transform_matrix": pose}]})
        (folder / "bom.json").write_bytes(b"\xef\xbb\xbf" + path.encode())
        (folder / "deep.json").write_text("[" * 100_000)
        (folder / "digits.json").write_text(path.replace("-4", "9" * 5000))
        (folder / "none.json").write_text("{}")
        before = os.getcwd()
        os.chdir(folder)
        try:
            assert main(shlex.split(f"train scene --steps 2 --out r --hold-out 1 {TRAIN}")) == 0
            shutil.copytree("r", os.fsdecode(b"run\xff"))
            shutil.copytree("r", "orphan")
            stored = Path("orphan", "config.json")
            stored.write_text(stored.read_text().replace(f"{folder}/scene", f"{folder}/moved"))
        finally:
            os.chdir(before)
        return Place(folder)

    def arguments(self, text: str) -> list[str]:
        """The arguments of a command line, split as a shell splits them."""
        paths = {"long": "a" * 300, "deep": "a/" * 2100, "nul": "a\0b"}
        paths |= {"bytes": os.fsdecode(b"r\xff"), "run": os.fsdecode(b"run\xff")}
        return [word.format(**paths) for word in shlex.split(text.replace("{tiny}", TRAIN))]


def called(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command line in this process: its exit code, stdout and stderr, whatever bytes they hold."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = main(arguments)
    for stream in streams:
        stream.flush()
    out, err = (cast("io.BytesIO", stream.buffer).getvalue().decode(errors="replace") for stream in streams)
    return code, out, err


def _lines(*rows: tuple[Any, ...]) -> list[Line]:
    return [Line(text, code, tuple(words)) for text, code, *words in rows]


RIGHT = _lines(
    ("--version", 0, "raymine "),
    ("help", 0, "usage: raymine"),
    ("train --help", 0, "usage: raymine train", "--max-seconds"),
    ("bench mining --help", 0, "usage: raymine bench mining", "--seeds"),
    ("bench step -h", 0, "usage: raymine bench step", "--views"),
    ("bench ops --help", 0, "usage: raymine bench ops", "--samples"),
    ("doctor --json", 0, '"backends"'),
    ("check scene --json", 0, '"ok": true'),
    ("check scene --downscale 2 --json", 0, '"format": "blender"'),
    ("train scene {tiny} --steps 1 --verbose --json", 0, '"test_psnr"'),
    ("train scene {tiny} --steps 1 -v --out ~nosuchuser/a --json", 0, '"train_psnr"'),
    ("train scene {tiny} --steps 3 --hold-out 1 --out r --resume --json", 0, '"held_out_psnr"'),
    ("eval r --views 1 --json", 0, '"psnr"'),
    ("eval --split train --views 99999999999999999999 --json r", 0, '"count": 5'),
    ("eval r --checkpoint best --views 1 --json", 0, '"step": 1'),
    ("eval {run} --views 1 --json", 0, '"step": 2'),
    ("render r --path bom.json --size 8x8 --out frames --json", 0, '"views": 1'),
    ("render r --frames 2 --size 7x5 --out odd.mp4 --depth --json", 0, '"odd-depth.mp4"'),
    ("render r --frames 2 --write-path path.json --json", 0, '"path.json"'),
    ("report r --out r.html --json", 0, '"report": "r.html"'),
    ("report r {run} --no-render --out two.html --json", 0, '"two.html"'),
    ("view r --seconds 0.2 --port 0 --json", 0, '"url": "http://127.0.0.1:'),
    ("serve r --seconds 0.2 --port 0 --json", 0, '"token": null'),
    ("export r --to field.safetensors --json", 0, '"format": "snapshot"'),
    ("runs --json", 0, '"runs"'),
    ("runs --compare r orphan --json", 0, '"settings"'),
    ("runs --tag r fine --json", 0, '"fine"'),
    ("reproduce orphan --against orphan --json", 0, '"verdict"'),
    ("pack scene --json", 0, '"scene_digest"'),
    ("cache --json", 0, '"entries"'),
    ("runs --root {bytes} --json", 0, '"root": "r\\udcff"'),
    ("bench ops --ops scan --samples 8 --out rows.jsonl --json", 0, '"op": "scan"'),
)
"""Those with --json must print one JSON document."""

WRONG = _lines(
    # The command.
    ("", 2),
    ("Train scene", 2, "no command `Train`", "`train`"),
    ("--verison", 2, "no option --verison", "`--version`"),
    ("--json runs", 2, "--json stands before the command"),
    ("bench", 2),
    ("bench mine scene", 2, "no benchmark `mine`", "`mining`"),
    # Flags.
    ("demo --second 3", 2, "no option --second.", "--seconds"),
    ("train scene --max_steps 3", 2, "no option --max_steps.", "--steps or --max-seconds"),
    ("train scene --max-steps=3", 2, "no option --max-steps.", "--steps or --max-seconds"),
    ("check scene --device cpu", 2, "no option --device", "`raymine train`"),
    ("eval r -v", 2, "no option -v.", "raymine eval --help"),
    ("runs --roots x", 2, "no option --roots.", "--root"),
    ("doctor --jsn", 2, "no option --jsn.", "--json"),
    ("eval -- r", 2, "no option --."),
    ("train scene --json=yes", 2, "--json is a switch"),
    ("bench step scene --resume", 2, "no option --resume", "`raymine bench mining`"),
    ("export r --to a.glb --frames 3", 2, "no option --frames", "`raymine render`"),
    # Arguments: missing, empty, too many.
    ("export r", 2, "--to is missing"),
    ("export", 2, "needs its argument RUN"),
    ("check", 2, "needs its argument SCENE"),
    ("eval", 2, "needs its argument RUN"),
    ("report", 2, "needs its argument RUNS"),
    ("render r other", 2, "no such argument: `other`"),
    ("demo now", 2, "no such argument: `now`"),
    ("runs r", 2, "no such argument: `r`"),
    ("runs --compare r", 2, "--compare takes two runs, got 1"),
    ("runs --untag r", 2, "--untag needs a run and the tags"),
    ("runs --sort size", 2, "--sort must be", "got `size`"),
    ("reproduce", 2, "needs its argument RUN"),
    ("reproduce nowhere", 4, "no run nowhere"),
    ("reproduce scene", 4, "scene is not a run folder"),
    ("pipeline", 2, "needs its argument FILE"),
    ("pipeline pipe", 2, "The pipeline file pipe is a pipe"),
    ("pipeline deep.json --dry-run", 2, "is not valid TOML"),
    ("sweep", 2, "needs its argument FILE"),
    ("sweep nowhere.toml", 2, "The sweep file nowhere.toml"),
    ("sweep deep.json --on ray", 2, "is not valid TOML"),
    ("cache --budget 20XB", 2, "must look like 20GB"),
    ("cache --drop nothing", 2, "nothing named nothing in the cache"),
    ("verify scene", 4, "scene is not a run folder"),
    ("train scene --track tensorbord", 2, "--track must be tensorboard, trackio or mlflow", "`tensorboard`"),
    ("bench ops scan", 2, "no such argument: `scan`"),
    ("check ''", 2, "missing or empty"),
    ("train scene --out", 2, "the value of --out is missing"),
    ("train scene --steps --json", 2, "the value of --steps is missing"),
    ("eval r --views=", 2, "the value of --views is missing"),
    ("check {nul}", 2, "NUL"),
    # Choices.
    ("render r --path Orbit", 2, "--path Orbit", "`orbit`"),
    ("eval r --split Test", 2, "--split must be test, val or train", "`test`"),
    ("eval r --split val", 2, "--split val", "train 5, test 3"),
    ("train scene --device gpu", 2, "--device must be auto, cpu or cuda", "`cuda`"),
    ("train scene --engine FUSED", 2, "--engine must be", "`fused`"),
    ("train scene --amp FP16", 2, "--amp must be", "`fp16`"),
    ("train scene --mining Hard", 2, "--mining", "`hard`"),
    ("train scene --pixels edge", 2, "--pixels", "`edges`"),
    ("train scene --recipe NGP", 2, "--recipe", "`ngp`"),
    ("train scene --recipe nosuch:recipe", 2, "no module `nosuch`"),
    ("train scene --recipe json:dumps", 2, "json:dumps"),
    ("bench mining scene --policies none,none", 2, "--policies names `none` twice"),
    ("bench step scene --policies hard:most", 2, "--policies", "hard:topk"),
    ("bench ops --ops Scan", 2, "--ops", "`scan`"),
    ("export r --to a.ply", 2, "may hold mesh, splats or points", "--format mesh"),
    ("export r --to a.stl", 2, ".stl is not a format to export to"),
    ("export r --to a.ply --format mehs", 2, "--format must be", "`mesh`"),
    # Numbers: of another type, not finite, out of range.
    ("export r --to a.glb --faces 3", 2, "--faces must be between 100"),
    ("export r --to a.glb --threshold nan", 2, "--threshold is a density"),
    ("export r --to a.html --count 0", 2, "--count must be between 1"),
    ("export r --to a.glb --box 1,1,1,0,0,0", 2, "--box must be six finite numbers"),
    ("export r --to empty/nothing/../..", 2),
    ("demo --seconds nan", 2, "--seconds must be a positive number"),
    ("demo --seconds 1e300", 2, "--seconds must be a positive number", "at most"),
    ("demo --seed -1", 2, "--seed must be between"),
    ("train scene --steps -1", 2, "--steps must be between 1 and", "got -1"),
    ("train scene --steps 1e3", 2, "--steps must be a whole number"),
    ("train scene --steps 99999999999999999999", 2, "--steps must be between 1 and"),
    ("train scene --max-seconds 1e999", 2, "--max-seconds must be a positive number", "got inf"),
    ("train scene --max-seconds=-0.0", 2, "--max-seconds must be a positive number"),
    ("train scene --steps 3 --max-seconds 3", 2, "a run has one limit"),
    ("train scene --seed 9223372036854775808", 2, "--seed must be between"),
    ("train scene --threads 0", 2, "--threads must be between"),
    ("train scene --hold-out 5", 2, "--hold-out 5", "at most 4"),
    ("train scene --recompute-samples -1", 2, "--recompute-samples must be"),
    ("check scene --downscale 0", 2, "--downscale must be a whole number of at least 1"),
    ("train scene --downscale -2", 2, "--downscale must be a whole number of at least 1"),
    ("bench mining scene --seconds inf", 2, "--seconds must be a positive number"),
    ("bench mining scene --seeds 99999999999", 2, "--seeds must be between"),
    ("bench step scene --views 0", 2, "--views must be at least 1"),
    ("bench ops --samples 99999999999999", 2, "--samples must be in"),
    ("eval r --views 0", 2, "--views must be at least 1"),
    ("render r --frames 1000000000", 2, "--frames must be between"),
    ("render r --fps nan --frames 1", 2, "--fps must be between"),
    ("render r --size 100000x100000", 2, "is too large", "--size"),
    ("render r --size 0x9", 2, "--size must look like 320x240"),
    # Scenes that are none.
    ("train nowhere", 3, "nowhere", "no such folder", "raymine check nowhere"),
    ("train pipe", 3, "pipe"),
    ("train loop", 3, "loop", "symbolic links"),
    ("train nowhere-link", 3, "no such folder"),
    ("train empty", 3, "the folder is empty"),
    ("train r", 3, "transforms.json"),
    ("train {long}", 3, "name too long"),
    ("train {bytes}", 3, "the folder is empty"),
    ("bench mining ~nosuchuser/scene", 3, "no such folder"),
    ("bench step /dev/zero", 3, "/dev/zero"),
    # Runs that are none.
    ("eval nowhere", 4, "no run folder nowhere", "raymine runs"),
    ("eval loop", 4, "no run folder loop"),
    ("eval scene", 4, "scene is not a run folder"),
    ("eval {long}", 5, "name too long"),
    ("render pipe", 4, "pipe is not a run folder"),
    ("render odd", 4, "odd"),
    ("eval orphan", 3, "orphan needs the scene that it was trained on", "moved", "put it back"),
    ("render ~nosuchuser/r", 4, "no run folder ~nosuchuser/r"),
    ("train scene --resume", 2, "--resume needs --out"),
    ("train scene --out odd --resume", 4, "odd"),
    ("runs --root nowhere", 4, "--root nowhere does not exist"),
    ("runs --root file", 4, "--root file is a file"),
    ("runs --root r --json", 4, "--root r is a run", "--root /"),
    # Places that cannot be written.
    ("demo --out file/x", 4, "lies in file, which is a file"),
    ("train scene --out r", 4, "already holds a run", "--resume"),
    ("train scene --out scene", 4, "is not a raymine run"),
    ("train scene --out pipe", 4, "--out pipe is a pipe"),
    ("train scene --out nowhere-link", 4, "a link that leads nowhere"),
    ("train scene --out loop/x", 4, "lies in loop"),
    ("train scene --out {deep}", 4, "name too long", "--out"),
    ("bench mining scene --out file --seconds 1", 4, "--out file is a file"),
    ("bench step scene --out empty --seconds 1", 4, "--out empty is a folder"),
    ("bench ops --ops scan --out pipe", 4, "--out pipe is a pipe"),
    ("render r --frames 1 --size 4x4 --out pipe", 2, "--out pipe is a pipe"),
    ("render r --frames 1 --size 4x4 --out file/x.mp4", 2, "lies in file"),
    ("render r --frames 1 --size 4x4 --out x.gif", 2, "written as .mp4"),
    ("render r --frames 1 --write-path pipe", 5, "pipe is a pipe"),
    ("render r --frames 1 --write-path /dev/null", 5, "/dev/null is a device"),
    ("view nowhere", 4, "no run folder nowhere"),
    ("view r --port 70000", 2, "--port must be between 0 and 65535"),
    ("view r --host nowhere.invalid --port 0", 2, "--host nowhere.invalid: there is no such host"),
    ("view r --seconds -1", 2, "--seconds must be a positive number"),
    ("train scene --view --port 70000", 2, "--port must be between 0 and 65535"),
    ("serve nowhere", 4, "no run folder nowhere"),
    ("serve r --port -1", 2, "--port must be between 0 and 65535"),
    ("serve r --max-pixels 0", 2, "--max-pixels must be between 1 and"),
    ("serve r --timeout nan", 2, "--timeout must be above 0 and at most 3600 seconds, got nan"),
    ("serve r --timeout 0", 2, "--timeout must be above 0"),
    ("serve r --queue 0", 2, "--queue must be between 1 and"),
    ("report r nowhere", 4, "no run folder nowhere"),
    ("report r --out file", 2, "is not a report of raymine"),
    ("report r --out empty", 2, "--out empty is a folder"),
    ("report r --out nofolder/x.html", 2, "no folder nofolder"),
    # Path files that are none.
    ("render r --path nowhere.json", 2, "nowhere.json", "`orbit`"),
    ("render r --path pipe", 2, "is a pipe, not a file"),
    ("render r --path loop", 2, "symbolic links"),
    ("render r --path deep.json", 2, "nested too deeply"),
    ("render r --path digits.json", 2, "digits.json"),
    ("render r --path none.json", 2, "none.json", "`frames`"),
)
"""Those with code 2 must leave the place as it is."""
