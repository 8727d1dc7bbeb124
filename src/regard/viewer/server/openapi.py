"""The OpenAPI description of the routes."""

from __future__ import annotations

from typing import Any, get_args

import regard
from regard.viewer.server.asked import Mode, Special, Unit
from regard.viewer.server.limits import Limits

_Json = dict[str, Any]
_NUMBER: _Json = {"type": "integer", "minimum": 0}


def description(limits: Limits) -> _Json:
    """What can be asked of a server, in OpenAPI 3.1."""
    one = "/api/traces/{id}"
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "regard",
            "version": regard.__version__,
            "description": "Attention of models that were named at start, and of saved traces.",
        },
        "paths": {
            "/": {"get": _operation("The page", {"text/html": {"type": "string"}})},
            "/favicon.ico": {"get": _operation("Nothing: the page has no icon", {})},
            "/openapi.json": {"get": _operation("This description", _json({"type": "object"}))},
            "/api/models": {"get": _operation("Models and limits", _json(_ref("Models")))},
            "/api/traces": {"get": _operation("Traces given at start", _json(_ref("Traces")))},
            one: {"get": _of_trace("The manifest of a trace", _json(_ref("Scene")))},
            f"{one}/chunks/{{number}}": {
                "get": _of_trace(
                    "A chunk of a trace: zlib; bytes of numbers split into planes",
                    _binary(),
                    _parameter("number", "path", _NUMBER, required=True),
                )
            },
            f"{one}/tile": {
                "get": _of_trace(
                    "256 × 256 cells of a map, float32, little endian; a cell of level l is the "
                    "weight farthest from 0 of 2^l × 2^l",
                    _binary(),
                    *_map(),
                    _parameter("level", "query", {**_NUMBER, "default": 0}),
                    _parameter("row", "query", _NUMBER, required=True),
                    _parameter("column", "query", _NUMBER, required=True),
                )
            },
            f"{one}/row": {
                "get": _of_trace(
                    "One row of a map, float32, little endian",
                    _binary(),
                    *_map(),
                    _parameter("row", "query", _NUMBER, required=True),
                )
            },
            f"{one}/column": {
                "get": _of_trace(
                    "One column of a map, float32, little endian",
                    _binary(),
                    *_map(),
                    _parameter("column", "query", _NUMBER, required=True),
                )
            },
            "/api/look": {
                "post": _posted(
                    "Run a model on a text; the manifest of its trace",
                    _json(_ref("Scene")),
                    _json(_ref("Look")),
                )
            },
            "/api/image": {
                "post": {
                    **_posted(
                        "Run a model on an image; the manifest of its trace",
                        _json(_ref("Scene")),
                        {kind: _bytes() for kind in ("image/png", "image/jpeg")},
                    ),
                    "parameters": [_parameter("model", "query", {"type": "string"}, required=True)],
                }
            },
            "/api/generate": {
                "post": _posted(
                    "Let a model go on from a text; a line of JSON for each event",
                    {"application/x-ndjson": _ref("Event")},
                    _json(_ref("Generate")),
                )
            },
            "/api/translate": {
                "post": _posted(
                    "Let a model translate a text; a line of JSON for each event",
                    {"application/x-ndjson": _ref("DraftEvent")},
                    _json(_ref("Look")),
                )
            },
        },
        "components": {
            "schemas": _schemas(limits),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _schemas(limits: Limits) -> _Json:
    text = {"type": "string", "minLength": 1, "maxLength": limits.characters}
    strings = {"type": "array", "items": {"type": "string"}}
    model = {
        "name": {"type": "string"},
        "title": {"type": "string"},
        "kind": {"enum": ["text", "image"]},
        "generates": {"type": "boolean"},
        "translates": {"type": "boolean"},
        "example": {"type": "string"},
    }
    trace = {
        "id": {"type": "string"},
        "title": {"type": "string"},
        "tokens": _NUMBER,
        "sites": _NUMBER,
    }
    error = {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "limit": {"type": ["number", "null"]},
        "got": {"type": ["number", "null"]},
    }
    event = {
        "event": {"enum": ["begin", "sites", "prompt", "step", "done", "error"]},
        "tokens": {**strings, "description": "begin: the prompt's tokens"},
        "special": {"type": "array", "items": {"type": "boolean"}, "description": "begin"},
        "sites": {
            "type": "array",
            "items": _object({"name": {"type": "string"}, "heads": _NUMBER}),
        },
        "site": {**_NUMBER, "description": "prompt: the number of the site"},
        "shape": {"type": "array", "items": _NUMBER, "description": "prompt: head, query, key"},
        "step": {**_NUMBER, "description": "step: from 1"},
        "keys": {
            "type": ["array", "null"],
            "items": _NUMBER,
            "description": "step: keys of the row of each site; null in step 1",
        },
        "token": {"type": "string", "description": "step: the token that was chosen"},
        "rows": {
            "description": "float16, little endian, base64; prompt: all rows of a site; step: the "
            "row of the token that was fed, of each site, (head, 1, key); null in step 1",
            "oneOf": [{"type": "string"}, strings, {"type": "null"}],
        },
        "id": {"type": "string", "description": "done: the trace of the whole"},
        "error": _ref("Failure"),
    }
    draft = {
        "event": {"enum": ["draft", "done", "error"]},
        "step": {**_NUMBER, "description": "draft: from 1"},
        "text": {"type": "string", "description": "draft, done: the translation so far"},
        "scene": {
            **_ref("Draft"),
            "description": "draft: the texts of both sides, and the sites of attention",
        },
        "known": {
            **_NUMBER,
            "description": "draft: how many of the first rows of each site are as they were",
        },
        "rows": {
            **strings,
            "description": "draft: the rows behind those, of each site: (head, query, key) as "
            "float16, little endian, base64",
        },
        "id": {"type": "string", "description": "done: the trace of the whole, exact"},
        "error": _ref("Failure"),
    }
    tokens = {"type": "integer", "minimum": 1, "maximum": limits.new_tokens}
    scene = {
        "title": {"type": "string"},
        "sequences": _array({"type": "object"}),
        "sites": _array({"type": "object"}),
        "parts": _array({"type": "object"}),
        "steps": {"type": ["object", "null"]},
        "image": {"type": ["object", "null"]},
        "start": {"type": "string"},
        "note": {"type": "string"},
    }
    return {
        "Models": _object({"models": _array(_object(model)), "limits": {"type": "object"}}),
        "Traces": _object({"traces": _array(_object(trace))}),
        "Look": _object({"model": {"type": "string"}, "text": text}),
        "Generate": _object({"model": {"type": "string"}, "text": text, "tokens": tokens}),
        "Event": {**_object(event), "required": ["event"]},
        "DraftEvent": {**_object(draft), "required": ["event"]},
        "Scene": _object({"id": {"type": "string"}, **scene}),
        "Draft": _object({"id": {"type": "null"}, **scene}),
        "Failure": _object(error),
        "Error": _object({"error": _ref("Failure")}),
    }


def _map() -> list[_Json]:
    """Parameters that name a map."""
    layer = {"oneOf": [_NUMBER, {"const": "all"}], "default": 0}
    return [
        _parameter("part", "query", {**_NUMBER, "default": 0}),
        _parameter("layer", "query", layer),
        _parameter("mode", "query", {"enum": list(get_args(Mode)), "default": "head"}),
        _parameter("head", "query", {**_NUMBER, "default": 0}),
        _parameter("unit", "query", {"enum": list(get_args(Unit)), "default": "pieces"}),
        _parameter("special", "query", {"enum": list(get_args(Special)), "default": "shown"}),
    ]


def _operation(summary: str, content: _Json, **more: Any) -> _Json:
    shown = {kind: {"schema": schema} for kind, schema in content.items()}
    refused = {"application/json": {"schema": _ref("Error")}}
    return {
        "summary": summary,
        **more,
        "responses": {
            "200": {"description": summary, "content": shown},
            "default": {"description": "Refused, with the reason", "content": refused},
        },
    }


def _of_trace(summary: str, content: _Json, *parameters: _Json) -> _Json:
    name = _parameter("id", "path", {"type": "string"}, required=True)
    return _operation(summary, content, parameters=[name, *parameters])


def _posted(summary: str, content: _Json, body: _Json) -> _Json:
    given = {kind: {"schema": schema} for kind, schema in body.items()}
    return _operation(summary, content, requestBody={"required": True, "content": given})


def _parameter(name: str, place: str, schema: _Json, required: bool = False) -> _Json:
    return {"name": name, "in": place, "required": required, "schema": schema}


def _json(schema: _Json) -> _Json:
    return {"application/json": schema}


def _binary() -> _Json:
    return {"application/octet-stream": _bytes()}


def _bytes() -> _Json:
    return {"type": "string", "format": "binary"}


def _object(properties: _Json) -> _Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: _Json) -> _Json:
    return {"type": "array", "items": items}


def _ref(name: str) -> _Json:
    return {"$ref": f"#/components/schemas/{name}"}
