"""What goes wrong at the door, and the one table of what every error is in HTTP.

ApiError
 - BadInput            a body, query or header that is not what it must be; names the field and the remedy
 - BodyTooLarge        a body beyond the limit; refused before it is read whole
 - WrongMediaType      a body that is not JSON
 - RangeUnsatisfiable  a range that starts behind the end of the artifact
"""

import logging

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ExceptionHandler

from api.answers import Json
from api.ids import REQUEST_ID
from api.schema import Error, ErrorBody
from cards.errors import InvalidRequest, UnknownModel, UnusableModel
from engine.errors import (
    ArtifactLost,
    ArtifactNotFound,
    BadBundle,
    BlobsHeld,
    BlobsShared,
    CannotCollect,
    Draining,
    GoneOn,
    HistoryError,
    JobExists,
    JobNotFound,
    KeyReused,
    LoopFailed,
    NoSuchComponent,
    NoSuchPlace,
    NoSuchStep,
    NotAllowed,
    StoreTrouble,
    TensorsGone,
    Unrunnable,
    WorkerNotFound,
)

log = logging.getLogger("keyframe.api")

MESSAGE_LIMIT = 600
"""Characters of a caller's own words that an error says back."""


class ApiError(Exception):
    """Root of what the door itself refuses."""


class BadInput(ApiError):
    def __init__(self, field: str | None, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


class BodyTooLarge(ApiError):
    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than the limit of {limit} bytes; send a shorter one")
        self.limit = limit


class WrongMediaType(ApiError):
    def __init__(self, got: str | None, wanted: str = "application/json") -> None:
        super().__init__(f"the body is {got or 'of no stated type'}; send it with Content-Type: {wanted}")
        self.got = got


class RangeUnsatisfiable(ApiError):
    def __init__(self, nbytes: int) -> None:
        super().__init__(f"the range starts behind the end; the artifact has {nbytes} bytes")
        self.headers = {"content-range": f"bytes */{nbytes}"}


class Rule(Struct, frozen=True):
    """An error in HTTP. `param` is what was wrong, for an error that does not say so in its `field`."""

    status: int
    code: str
    param: str | None = None
    headers: dict[str, str] = {}


RULES: dict[type[Exception], Rule] = {
    BadInput: Rule(400, "bad_input"),
    BodyTooLarge: Rule(413, "body_too_large", headers={"connection": "close"}),
    WrongMediaType: Rule(415, "wrong_media_type", "Content-Type"),
    RangeUnsatisfiable: Rule(416, "range_unsatisfiable", "Range"),
    InvalidRequest: Rule(422, "invalid_request"),
    UnknownModel: Rule(404, "model_not_found", "model"),
    UnusableModel: Rule(409, "model_unusable", "model", {"x-should-retry": "false"}),
    JobNotFound: Rule(404, "job_not_found", "job"),
    ArtifactNotFound: Rule(404, "artifact_not_found", "name"),
    ArtifactLost: Rule(500, "artifact_lost", "name", {"x-should-retry": "false"}),
    KeyReused: Rule(409, "key_reused", "Idempotency-Key", {"x-should-retry": "false"}),
    NotAllowed: Rule(409, "not_allowed", headers={"x-should-retry": "false"}),
    GoneOn: Rule(409, "gone_on", headers={"x-should-retry": "false"}),
    BadBundle: Rule(422, "bad_bundle"),
    JobExists: Rule(409, "job_exists", "job", {"x-should-retry": "false"}),
    CannotCollect: Rule(500, "cannot_collect", "job", {"x-should-retry": "false"}),
    BlobsShared: Rule(409, "blobs_shared", headers={"x-should-retry": "false"}),
    BlobsHeld: Rule(503, "blobs_held", headers={"retry-after": "60"}),
    NoSuchStep: Rule(422, "no_such_step"),
    TensorsGone: Rule(409, "tensors_gone", headers={"x-should-retry": "false"}),
    Unrunnable: Rule(409, "unrunnable", headers={"x-should-retry": "false"}),
    NoSuchComponent: Rule(422, "no_such_component"),
    NoSuchPlace: Rule(422, "no_such_place"),
    WorkerNotFound: Rule(404, "worker_not_found", "worker"),
    Draining: Rule(503, "draining", headers={"retry-after": "5"}),
    StoreTrouble: Rule(503, "store_trouble", headers={"retry-after": "5"}),
    HistoryError: Rule(500, "unreadable_history"),
    LoopFailed: Rule(500, "loop_failed"),
}


def rule_of(kind: type[Exception]) -> Rule | None:
    """The rule of an error class, or of the nearest class above it that has one."""
    return next((RULES[parent] for parent in kind.__mro__ if parent in RULES), None)


def handlers() -> dict[type[Exception], ExceptionHandler]:
    """What `Starlette(exception_handlers=...)` takes."""
    return {
        **dict.fromkeys(RULES, _known),
        HTTPException: _unrouted,
        ClientDisconnect: _gone,
        Exception: _unexpected,
    }


async def _known(request: Request, error: Exception) -> Response:
    rule = rule_of(type(error))
    assert rule is not None, "only the classes of RULES come here"
    if rule.status >= 500:
        log.warning("%s: %s", rule.code, error, extra={"request_id": _request_id(request)})
    own: dict[str, str] = getattr(error, "headers", {})
    return answer(
        rule.status, rule.code, str(error), param=getattr(error, "field", rule.param), headers=rule.headers | own
    )


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        message = f"{request.url.path}: {error.detail}; /openapi.json lists what there is"
        return answer(error.status_code, "not_found", message)
    allowed = ", ".join(_methods(request))
    message = f"{request.method} is not allowed here; allowed: {allowed}"
    return answer(405, "method_not_allowed", message, headers={"allow": allowed})


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; the metrics count it


async def _unexpected(request: Request, error: Exception) -> Response:
    request_id = _request_id(request)  # this answer leaves outside the middleware that adds it to others
    log.error("unexpected", exc_info=error, extra={"request_id": request_id})
    message = "something went wrong here; it has been logged"
    return answer(500, "internal_error", message, headers={REQUEST_ID: request_id})


def answer(
    status: int, code: str, message: str, *, param: str | None = None, headers: dict[str, str] | None = None
) -> Json:
    """An error as callers see it."""
    error = Error(
        type="invalid_request_error" if status < 500 else "server_error",
        message=_short(message),
        param=_short(param) if param else None,
        code=code,
    )
    return Json(ErrorBody(error), status, headers)


def _short(text: str) -> str:
    return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}…"


def _methods(request: Request) -> list[str]:
    """All that the path takes: starlette names only those of the first route that has it."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    here = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in here for method in route.methods or ()})


def _request_id(request: Request) -> str:
    found: str = request.scope["state"][REQUEST_ID]
    return found
