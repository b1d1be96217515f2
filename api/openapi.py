"""The route table, and the OpenAPI document that is made of it. Neither can say what the other does not."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.schema import ErrorBody

REF = "#/components/schemas/{name}"
JSON = "application/json"

Endpoint = Callable[[Request], Awaitable[Response]]


class Answer(Struct, frozen=True):
    """What a status comes with: JSON of a type, bytes of some media types, or nothing."""

    json: Any = None
    media: tuple[str, ...] = ()


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path. The endpoint's docstring is its summary."""

    method: str
    path: str
    endpoint: Endpoint
    answers: dict[int, Answer]
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    headers: tuple[str, ...] = ()

    def route(self) -> Route:
        return Route(self.path, self.endpoint, methods=[self.method])


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Keyframe", "version": version},
        "paths": paths,
        "components": {"schemas": _components(operations)},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    summary = (operation.endpoint.__doc__ or "").partition("\n")[0]
    told: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "summary": summary,
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation), *_headers(operation)],
        "responses": {str(status): _answer(status, answer) for status, answer in operation.answers.items()}
        | {"default": _answer(None, Answer(ErrorBody))},
    }
    if operation.body is not None:
        told["requestBody"] = {
            "required": _required(operation.body),
            "content": {JSON: {"schema": _schema(operation.body)}},
        }
    return told


def _required(body: type[Struct]) -> bool:
    """A body all of whose fields have defaults may be left out."""
    return any(field.required for field in msgspec.structs.fields(body))


def _operation_id(operation: Operation) -> str:
    words = re.sub(r"\W+", "_", operation.path.removeprefix("/v1")).strip("_")
    return f"{operation.method.lower()}_{words}"


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(operation: Operation) -> Iterable[dict[str, Any]]:
    if operation.query is None:
        return
    _, components = msgspec.json.schema_components([operation.query], ref_template=REF)
    for name, schema in components[operation.query.__name__]["properties"].items():
        yield {"name": name, "in": "query", "required": False, "schema": schema}


def _headers(operation: Operation) -> Iterable[dict[str, Any]]:
    for name in operation.headers:
        yield {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}


def _answer(status: int | None, answer: Answer) -> dict[str, Any]:
    content: dict[str, Any] = {media: {} for media in answer.media}
    if answer.json is not None:
        content[JSON] = {"schema": _schema(answer.json)}
    told: dict[str, Any] = {"description": HTTPStatus(status).phrase if status else "An error"}
    return told | ({"content": content} if content else {})


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return schema


def _components(operations: Sequence[Operation]) -> dict[str, Any]:
    told = [answer.json for operation in operations for answer in operation.answers.values()]
    asked = [operation.body for operation in operations]
    kinds = [kind for kind in (*told, *asked, ErrorBody) if kind is not None]
    _, components = msgspec.json.schema_components(kinds, ref_template=REF)
    return components
