"""The HTTP service, over real sockets."""

from __future__ import annotations

import http.client
import io
import json
import logging
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raymine.errors import ResourceError
from raymine.experiment import LoadedRun, load_run, train
from raymine.export import novel_camera, render_view
from raymine.listening import Place
from raymine.pictures import to_uint8
from raymine.serve import Limits, RenderService
from raymine.serve.request import FIELDS
from support.disc_scene import write_scene_of_eight
from support.http_raw import codes, malformed, send_raw
from support.runs import request

AT = {"position": [0, -4, 1], "target": [0, 0, 0], "width": 24, "height": 16}
JSON = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    folder = tmp_path_factory.mktemp("serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYMINE_CACHE", str(folder / "cache"))
        train(request(write_scene_of_eight(folder / "scene"), folder / "run", steps=60))
        return load_run(folder / "run", device="cpu")


@pytest.fixture(scope="module")
def service(loaded: LoadedRun) -> Iterator[RenderService]:
    with RenderService(loaded, Place(), Limits(pixels=10_000)) as found:
        yield found


def ask(service: RenderService, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", int(service.url.rpartition(":")[2]), timeout=60)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"} if body is not None else {}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, data, {**kind, **names})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def test_picture_is_that_of_render(service: RenderService, loaded: LoadedRun) -> None:
    frame = loaded.scene.frames[0]
    body = {"pose": frame.pose.tolist(), "world": "raymine", "width": 24, "height": 24}
    code, headers, data = ask(service, "POST", "/render", body)
    assert (code, headers["content-type"]) == (200, "image/png")
    camera = novel_camera(loaded.scene.cameras[0], (24, 24))
    background = loaded.scene.background or (0.0, 0.0, 0.0)
    view = render_view(loaded.renderer, camera, frame.pose, loaded.scene.bounds, background=background)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), to_uint8(view.colour))
    assert to_uint8(view.colour).std() > 3


def test_formats_and_kinds(service: RenderService) -> None:
    code, headers, data = ask(service, "POST", "/render", {**AT, "format": "jpeg"})
    assert (code, headers["content-type"]) == (200, "image/jpeg")
    assert Image.open(io.BytesIO(data)).size == (24, 16)
    kinds = {kind: ask(service, "POST", "/render", {**AT, "kind": kind})[2] for kind in ("colour", "depth", "opacity")}
    assert len(set(kinds.values())) == 3


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"{", 400, "cut short"),
        (b"\xff\xfe", 400, "not UTF-8"),
        (b"[" * 60_000, 400, "nested too deeply"),
        (b"", 400, "cut short"),
        ({**AT, "width": 100_000, "height": 100_000}, 422, "too large"),
        ({"pose": [[1, 2], [3]]}, 422, "pose"),
        ({"pose": [[0] * 4] * 3}, 422, "pose"),
        ({}, 422, "where the camera stands"),
        (b'{"width": 1e999}', 422, "whole number"),
        (b" " * 70_000, 413, "65536 bytes"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(service: RenderService, body: Any, code: int, words: str) -> None:
    found, headers, data = ask(service, "POST", "/render", body)
    assert found == code
    assert headers["content-type"] == "application/json"
    assert words in json.loads(data)["error"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("GET", "/nowhere", {}, 404),
        ("GET", "/../etc/passwd", {}, 404),
        ("GET", "/render", {}, 405),
        ("BREW", "/health", {}, 405),
        ("OPTIONS", "/render", {}, 405),
        ("GET", "/health", {"Host": "evil.example"}, 403),
        ("GET", "/health", {"Origin": "http://evil.example"}, 403),
        ("HEAD", "/health", {}, 200),
    ],
)
def test_routes_methods_and_strangers(
    service: RenderService, method: str, path: str, headers: dict[str, str], code: int
) -> None:
    assert ask(service, method, path, **headers)[0] == code


def test_body_must_be_declared_as_json(service: RenderService) -> None:
    assert ask(service, "POST", "/render", json.dumps(AT).encode(), Content_Type="text/plain")[0] == 415


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"/x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: [::1\r\n\r\n",
        b"GET http://[x/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://[x\r\n\r\n",
        b"POST /render HTTP/1.1\r\n" + JSON + b"Content-Length: -1\r\n\r\n",
        b"POST /render HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_4xx(service: RenderService, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), timeout=10) as client:
        client.sendall(raw)
        client.settimeout(10)
        answer = client.recv(4096)
    assert answer.split(b" ")[1].startswith(b"4")


def test_malformed_requests_are_answered_with_4xx_and_nothing_is_logged(
    service: RenderService, caplog: pytest.LogCaptureFixture
) -> None:
    """`python tests/support/http_raw.py PORT COUNT` sends any number of them to a running service."""
    port, draw = int(service.url.rpartition(":")[2]), random.Random(0)
    sent = [malformed(draw) for _ in range(300)]
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda data: send_raw(port, data), sent))
    found = {code for answer in answers for code in codes(answer)}
    assert {200, 400, 403, 404, 405, 411, 415, 422} <= found
    assert max(found) < 500, [data for data, answer in zip(sent, answers, strict=True) if max(codes(answer)) >= 500]
    assert caplog.records == []
    assert ask(service, "GET", "/health")[0] == 200


def test_health_metrics_and_description(service: RenderService) -> None:
    ask(service, "POST", "/render", AT)
    health = json.loads(ask(service, "GET", "/health")[2])
    assert (health["status"], health["step"]) == ("ok", 60)
    code, headers, text = ask(service, "GET", "/metrics")
    assert (code, headers["content-type"]) == (200, "text/plain; version=0.0.4")
    assert b'raymine_answers_total{path="/render",code="200"}' in text
    assert b"raymine_queue_waiting 0" in text
    document = json.loads(ask(service, "GET", "/openapi.json")[2])
    assert document["openapi"].startswith("3.")
    fields = document["paths"]["/render"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert set(fields) == set(FIELDS)


def test_request_without_the_token_gets_401(loaded: LoadedRun) -> None:
    with RenderService(loaded, Place(token="secret")) as service:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            code, found, _ = ask(service, "POST", "/render", AT, **headers)
            assert (code, found["www-authenticate"]) == (401, "Bearer")
        assert ask(service, "GET", "/metrics")[0] == 401
        assert ask(service, "GET", "/health")[0] == 200
        assert ask(service, "POST", "/render", AT, Authorization="Bearer secret")[0] == 200


def test_200_concurrent_requests_are_all_answered(loaded: LoadedRun) -> None:
    with RenderService(loaded, Place(), Limits(waiting=256, seconds=120)) as service:
        with ThreadPoolExecutor(200) as pool:
            found = list(pool.map(lambda _: ask(service, "POST", "/render", AT), range(200)))
        assert [code for code, _, _ in found] == [200] * 200
        assert len({data for _, _, data in found}) == 1


def test_full_queue_answers_429_with_retry_after(loaded: LoadedRun) -> None:
    with RenderService(loaded, Place(), Limits(waiting=1, seconds=60)) as service:
        with ThreadPoolExecutor(24) as pool:
            found = list(pool.map(lambda _: ask(service, "POST", "/render", {**AT, "width": 200}), range(24)))
        codes = [code for code, _, _ in found]
        assert set(codes) == {200, 429}
        assert all(int(headers["retry-after"]) >= 1 for code, headers, _ in found if code == 429)


def test_picture_that_takes_too_long_is_a_4xx(loaded: LoadedRun) -> None:
    with RenderService(loaded, Place(), Limits(seconds=1e-4)) as service:
        code, _, data = ask(service, "POST", "/render", {**AT, "width": 1000, "height": 1000})
        assert code in (422, 429)
        assert "0.0001 s" in json.loads(data)["error"]


def test_second_service_on_the_port_is_an_error_and_stop_frees_it(loaded: LoadedRun) -> None:
    with RenderService(loaded, Place()) as service:
        port = int(service.url.rpartition(":")[2])
        with pytest.raises(ResourceError, match="is in use"):
            RenderService(loaded, Place(port=port))
    with RenderService(loaded, Place(port=port)) as again:
        assert ask(again, "GET", "/health")[0] == 200
