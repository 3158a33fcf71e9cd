"""What `raymine view` and `raymine serve` have in common. Nothing here listens on another address than loopback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from raymine.cli import main
from raymine.cli.app import parse
from raymine.cli.results.serve import Serve
from raymine.cli.results.serving import Serving
from raymine.cli.results.view import View
from raymine.experiment import train
from raymine.listening import Place, listen
from support.runs import request

COMMANDS = ["view", "serve"]
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.mark.parametrize(("name", "kind", "port"), [("view", View, 8080), ("serve", Serve, 8090)])
def test_options_are_shared_and_ports_differ(name: str, kind: type, port: int) -> None:
    command = parse(name, ["r", "--token", "t", "--checkpoint", "best"])
    assert isinstance(command, kind)
    assert isinstance(command, Serving)
    assert (command.port, command.token, command.checkpoint, command.host) == (port, "t", "best", "127.0.0.1")


@pytest.mark.parametrize("command", [View, Serve])
def test_other_hosts_get_a_warning_and_a_token_and_loopback_neither(
    command: type[Serving], capsys: pytest.CaptureFixture[str]
) -> None:
    here = command(run=Path("r"), port=0).place()
    assert (here.token, capsys.readouterr().err) == (None, "")
    elsewhere = command(run=Path("r"), host="0.0.0.0", port=0).place()
    assert elsewhere.token is not None
    assert len(elsewhere.token) >= 20
    assert "lets other machines connect, without encryption" in capsys.readouterr().err
    assert command(run=Path("r"), host="0.0.0.0", port=0, token="mine").place().token == "mine"


@pytest.mark.parametrize("command", COMMANDS)
def test_run_without_a_checkpoint_and_a_port_in_use_are_clear_errors(
    scene: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "view":
        pytest.importorskip("viser")
    train(request(scene, Path("r"), steps=5, evaluate_views=0))
    with listen(Place()) as taken:
        port = str(taken.getsockname()[1])
        assert main([command, "r", "--port", port, "--device", "cpu"]) == 5
        error = capsys.readouterr().err
        assert f"--port {port} is in use: another server listens there" in error
        assert "--port 0 takes any free one" in error
    shutil.rmtree("r/checkpoints")
    assert main([command, "r", "--port", "0", "--device", "cpu"]) == 4
    error = capsys.readouterr().err
    assert "The run r has no checkpoint yet." in error
    assert "Traceback" not in error


@pytest.mark.parametrize("command", COMMANDS)
def test_ready_server_tells_its_address_and_its_token(
    scene: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "view":
        pytest.importorskip("viser")
    train(request(scene, Path("r"), steps=5, evaluate_views=0))
    words = [command, "r", "--port", "0", "--device", "cpu", "--token", "secret", "--seconds", "0.2"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["step"], told["token"]) == ("r", 5, "secret")
    assert told["url"].startswith("http://127.0.0.1:")
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.startswith("http://127.0.0.1:")
    assert "secret" in out + err
