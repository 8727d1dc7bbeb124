"""Endpoints of the server, and the OpenAPI document made from them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from starlette.requests import Request
from starlette.responses import Response

import regard
from regard.viewer.server.limits import Limits
from regard.viewer.server.maps.map_query import Mode, Special, Unit

Json = dict[str, Any]
_H = TypeVar("_H", bound=Callable[[Any, Request], Awaitable[Response]])
Content = dict[str, Json]  #: schemas by media type

NUMBER: Json = {"type": "integer", "minimum": 0}
_BYTES: Json = {"type": "string", "format": "binary"}
BINARY: Content = {"application/octet-stream": _BYTES}
IMAGE: Content = {"image/png": _BYTES, "image/jpeg": _BYTES}
STRING: Json = {"type": "string"}
_PATH_PARAMETERS = {"id": STRING, "number": NUMBER}


@dataclass(frozen=True)
class Endpoint:
    """One path and method: what answers it, and what its description says."""

    method: str
    path: str
    handler: Callable[[Any, Request], Awaitable[Response]]  #: a method of the server
    summary: str
    response: Content
    parameters: tuple[Json, ...]  #: of the query
    body: Content | None

    def operation(self) -> Json:
        """The endpoint as an OpenAPI operation."""
        in_path = [
            {"name": name, "in": "path", "required": True, "schema": _PATH_PARAMETERS[name]}
            for name in re.findall(r"\{(\w+)\}", self.path)
        ]
        operation: Json = {
            "summary": self.summary,
            "parameters": [*in_path, *self.parameters],
            "responses": {
                "200": {"description": self.summary, "content": _content(self.response)},
                "default": {
                    "description": "Refused, with the reason",
                    "content": _content(json_of("Error")),
                },
            },
        }
        if self.body is not None:
            operation["requestBody"] = {"required": True, "content": _content(self.body)}
        return operation


#: Every path of the server, in the order in which they are matched.
ENDPOINTS: list[Endpoint] = []


def endpoint(
    method: str, path: str, response: Content, *parameters: Json, body: Content | None = None
) -> Callable[[_H], _H]:
    """Register a method of the server as an endpoint; its docstring is the summary."""

    def register(handler: _H) -> _H:
        summary = " ".join((handler.__doc__ or "").split()).removesuffix(".")
        ENDPOINTS.append(Endpoint(method, path, handler, summary, response, parameters, body))
        return handler

    return register


def document(limits: Limits) -> Json:
    """The server's API in OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "regard",
            "version": regard.__version__,
            "description": "Attention of models that were named at start, and of saved traces.",
        },
        "paths": {entry.path: {entry.method.lower(): entry.operation()} for entry in ENDPOINTS},
        "components": {
            "schemas": _schemas(limits),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def json_of(schema: str) -> Content:
    """JSON of a named schema."""
    return {"application/json": _ref(schema)}


def lines_of(schema: str) -> Content:
    """A line of JSON for each event."""
    return {"application/x-ndjson": _ref(schema)}


def query(name: str, schema: Json = NUMBER) -> Json:
    """A parameter of the address; it is required unless its schema has a default."""
    required = "default" not in schema
    return {"name": name, "in": "query", "required": required, "schema": schema}


LEVEL = query("level", {**NUMBER, "default": 0})
#: Parameters that name a map.
MAP = (
    query("part", {**NUMBER, "default": 0}),
    query("layer", {"oneOf": [NUMBER, {"const": "all"}], "default": 0}),
    query("mode", {"enum": list(get_args(Mode)), "default": "head"}),
    query("head", {**NUMBER, "default": 0}),
    query("unit", {"enum": list(get_args(Unit)), "default": "pieces"}),
    query("special", {"enum": list(get_args(Special)), "default": "shown"}),
)


def _schemas(limits: Limits) -> Json:
    text = {"type": "string", "minLength": 1, "maxLength": limits.characters}
    strings = _array(STRING)
    model = {
        "name": STRING,
        "title": STRING,
        "kind": {"enum": ["text", "image"]},
        "generates": {"type": "boolean"},
        "translates": {"type": "boolean"},
        "example": STRING,
    }
    trace = {"id": STRING, "title": STRING, "tokens": NUMBER, "sites": NUMBER}
    error = {
        "code": STRING,
        "message": STRING,
        "limit": {"type": ["number", "null"]},
        "got": {"type": ["number", "null"]},
    }
    event = {
        "event": {"enum": ["begin", "sites", "prompt", "step", "done", "error"]},
        "tokens": {**strings, "description": "begin: the prompt's tokens"},
        "special": {**_array({"type": "boolean"}), "description": "begin"},
        "sites": _array(_object({"name": STRING, "heads": NUMBER})),
        "site": {**NUMBER, "description": "prompt: the number of the site"},
        "shape": {**_array(NUMBER), "description": "prompt: head, query, key"},
        "step": {**NUMBER, "description": "step: from 1"},
        "keys": {
            "type": ["array", "null"],
            "items": NUMBER,
            "description": "step: keys of the row of each site; null in step 1",
        },
        "token": {"type": "string", "description": "step: the token that was chosen"},
        "likely": {
            **_array({"type": "array", "prefixItems": [STRING, NUMBER]}),
            "description": "step: the most probable tokens with their probabilities, if known",
        },
        "rows": {
            "description": "float16, little endian, base64; prompt: all rows of a site; step: the "
            "row of the token that was fed, of each site, (head, 1, key); null in step 1",
            "oneOf": [STRING, strings, {"type": "null"}],
        },
        "id": {"type": "string", "description": "done: the trace of the whole"},
        "error": _ref("Failure"),
    }
    draft = {
        "event": {"enum": ["draft", "done", "error"]},
        "step": {**NUMBER, "description": "draft: from 1"},
        "text": {"type": "string", "description": "draft, done: the translation so far"},
        "scene": {
            **_ref("Draft"),
            "description": "draft: the texts of both sides, and the sites of attention",
        },
        "known": {
            **NUMBER,
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
        "title": STRING,
        "sequences": _array({"type": "object"}),
        "sites": _array({"type": "object"}),
        "parts": _array({"type": "object"}),
        "steps": {"type": ["object", "null"]},
        "image": {"type": ["object", "null"]},
        "start": STRING,
        "note": STRING,
    }
    return {
        "Models": _object({"models": _array(_object(model)), "limits": {"type": "object"}}),
        "Traces": _object({"traces": _array(_object(trace))}),
        "Look": _object({"model": STRING, "text": text}),
        "Generate": _object({"model": STRING, "text": text, "tokens": tokens}),
        "Event": {**_object(event), "required": ["event"]},
        "DraftEvent": {**_object(draft), "required": ["event"]},
        "Scene": _object({"id": STRING, **scene}),
        "Draft": _object({"id": {"type": "null"}, **scene}),
        "Failure": _object(error),
        "Error": _object({"error": _ref("Failure")}),
    }


def _content(schemas: Content) -> Json:
    return {media_type: {"schema": schema} for media_type, schema in schemas.items()}


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
