"""Query strings and path parameters as typed data."""

from typing import TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request

from api.decode import refusal
from engine.errors import JobNotFound

T = TypeVar("T", bound=Struct)

JOB_ID_LIMIT = 128


def query(request: Request, kind: type[T]) -> T:
    """Raises BadInput, which names the parameter."""
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(error, kind) from error


def job_id(request: Request) -> str:
    """The id in the path. Raises JobNotFound for what could never be one and no database should be asked about."""
    asked: str = request.path_params["job"]
    return checked_job_id(asked)


def checked_job_id(asked: str) -> str:
    if len(asked) > JOB_ID_LIMIT or not (asked.isascii() and asked.isprintable()):
        raise JobNotFound(asked[:JOB_ID_LIMIT])
    return asked
