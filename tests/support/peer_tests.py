"""Runs the test suite of a nerfacc checkout against the drop-in.

    python tests/support/peer_tests.py CHECKOUT [--device cpu|cuda] [--version 0.5] [-- pytest arguments]

The tests are copied to a temporary folder. There the device that they name is replaced, and a conftest.py installs the
drop-in before the first of them imports nerfacc. Tests of what is not served (`LEFT_OUT`) are not copied. The exit code
is that of pytest.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LEFT_OUT = ("test_vdb.py",)
"""Files of the suite whose subject the drop-in refuses by name."""

CONFTEST = """\
import pytest
import torch

import raymine.compat.nerfacc

raymine.compat.nerfacc.install(version={version!r})


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
"""
"""Tests of 0.2 and 0.3 draw points without a seed. For 1 draw in 300, float32 is too coarse for their tolerance."""

TQDM = "tqdm = lambda steps, **_: steps\n\n\ndef trange(n, **_):\n    return range(n)\n"
"""What the suite imports of tqdm, for its own timings. It is written next to the tests where tqdm is missing."""

_DEVICE = re.compile(r"""(["'])cuda(?::\d+)?\1""")


def prepare(checkout: Path, folder: Path, device: str, version: str) -> list[Path]:
    """Copy the tests of a checkout to a folder, for a device and a version. -> the copied files."""
    found = sorted((checkout / "tests").glob("test_*.py"))
    if not found:
        raise SystemExit(f"{checkout} has no tests/test_*.py. Give the folder of a nerfacc checkout.")
    (folder / "conftest.py").write_text(CONFTEST.format(version=version))
    if importlib.util.find_spec("tqdm") is None:
        (folder / "tqdm.py").write_text(TQDM)
    copies = []
    for path in found:
        if path.name not in LEFT_OUT:
            copy = folder / path.name
            copy.write_text(_DEVICE.sub(f'"{device}"', path.read_text()))
            copies.append(copy)
    return copies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of a nerfacc checkout, with its tests/")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--version", default="0.5", help="version of the drop-in; see `install`")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:end])
    with tempfile.TemporaryDirectory(prefix="peer-tests-") as name:
        folder = Path(name)
        device = "cuda:0" if options.device == "cuda" else "cpu"
        prepare(options.checkout, folder, device, options.version)
        # This process may have been started with the sources on its path only.
        path = os.pathsep.join(part for part in sys.path[1:] if part)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            f"--rootdir={name}",
            name,
        ]
        return subprocess.run(
            [*command, *sys.argv[end + 1 :]], env={**os.environ, "PYTHONPATH": path}, cwd=name
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
