"""JSON answers, written by msgspec."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

encode = msgspec.json.Encoder().encode


class Json(Response):
    """Anything msgspec can write: a Struct of `api.schema`, most often."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, headers)

    def render(self, content: Any) -> bytes:
        return encode(content)
