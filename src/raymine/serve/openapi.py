"""The OpenAPI description of the service."""

from __future__ import annotations

from typing import Any, get_args

from raymine._version import __version__
from raymine.contracts import Scene

from .limits import Limits
from .request import Format, Kind, World

_NUMBERS = {"type": "array", "items": {"type": "number"}}


def describe(scene: Scene, limits: Limits, *, token: bool) -> dict[str, Any]:
    """The document that /openapi.json answers. token: whether requests need one."""
    problem = {"description": "What was wrong, in a sentence", "content": {"application/json": {"schema": _PROBLEM}}}
    free_of_token = {"400": problem, "403": problem, "431": problem}
    refused = {**free_of_token, "401": problem} if token else free_of_token
    busy = {**problem, "headers": {"Retry-After": {"schema": {"type": "integer"}}}}
    codes = {"411": problem, "413": problem, "415": problem, "422": problem, "429": busy, "503": busy}
    picture = {"description": "The picture", "content": {f"image/{kind}": {} for kind in get_args(Format)}}
    render = {
        "summary": "Render the view of a posed camera",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _view(scene, limits), "example": _EXAMPLE}},
        },
        "responses": {"200": picture, **codes, **refused},
    }

    def get(summary: str, kind: str, free: bool = False) -> dict[str, Any]:
        found = {"200": {"description": summary, "content": {kind: {}}}, **(free_of_token if free else refused)}
        return {"get": {"summary": summary, "responses": found, **({"security": []} if free else {})}}

    return {
        "openapi": "3.1.0",
        "info": {"title": "raymine serve", "version": __version__, "description": "Renders views of a trained run."},
        "paths": {
            "/render": {"post": render},
            "/health": get("Whether the service works", "application/json", free=True),
            "/metrics": get("Counters for Prometheus", "text/plain"),
            "/openapi.json": get("This document", "application/json"),
        },
        **({"security": [{"token": []}]} if token else {}),
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if token else {},
    }


_EXAMPLE = {"position": [3, 2, 1], "target": [0, 0, 0], "width": 160, "height": 120, "fov": 45, "format": "png"}

_PROBLEM = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "hint": {"type": "string"}},
    "required": ["error"],
}


def _view(scene: Scene, limits: Limits) -> dict[str, Any]:
    base = scene.cameras[scene.frames[0].camera]
    vector = {**_NUMBERS, "minItems": 3, "maxItems": 3}
    rows = {"type": "array", "items": {**_NUMBERS, "minItems": 4, "maxItems": 4}, "minItems": 3, "maxItems": 4}
    side = {"type": "integer", "minimum": 1, "maximum": limits.pixels}

    def choice(values: tuple[str, ...]) -> dict[str, Any]:
        return {"type": "string", "enum": list(values), "default": values[0]}

    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "pose": {**rows, "description": "Camera-to-world, rows first; x right, y up, z backward"},
            "position": {**vector, "description": "Where the camera stands, instead of `pose`"},
            "target": {**vector, "description": "What it looks at"},
            "up": {**vector, "description": "What is up in the picture; the scene's own if missing"},
            "world": {**choice(get_args(World)), "description": "Coordinates: of the scene's files, or normalised"},
            "width": {**side, "default": base.width},
            "height": {**side, "default": base.height, "description": f"width x height is at most {limits.pixels}"},
            "fov": {"type": "number", "minimum": 1, "maximum": 170, "description": "Vertical, in degrees"},
            "focal": {"type": "number", "exclusiveMinimum": 0, "description": "In pixels, instead of `fov`"},
            "format": choice(get_args(Format)),
            "quality": {"type": "integer", "minimum": 1, "maximum": 100, "default": 90, "description": "Of a JPEG"},
            "kind": choice(get_args(Kind)),
            "time": {"type": "number", "minimum": 0, "maximum": 1, "description": "Of a dynamic scene"},
            "background": {
                "type": "array",
                "items": {"type": "number", "minimum": 0, "maximum": 1},
                "minItems": 3,
                "maxItems": 3,
            },
        },
        "oneOf": [
            {"required": ["pose"], "not": _any_of("position", "target", "up")},
            {"required": ["position", "target"], "not": _any_of("pose")},
        ],
        "not": {"required": ["fov", "focal"]},
    }


def _any_of(*names: str) -> dict[str, Any]:
    """A schema of objects that have one of these fields."""
    return {"anyOf": [{"required": [name]} for name in names]}
