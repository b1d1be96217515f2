"""Artifacts: the bytes of clips, sheets and previews, whole or in part."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from api import ranges
from api.query import job_id
from cards.wire import ArtifactRef
from engine.client import Client


class Artifacts:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def fetch(self, request: Request) -> Response:
        """An artifact's bytes. The ETag is their digest; one Range is served."""
        ref, data = await self._client.artifact(job_id(request), request.path_params["name"])
        tag = ranges.etag(ref.digest)
        headers = _headers(ref, tag)
        if ranges.unchanged(request.headers.get("if-none-match"), tag):
            return Response(status_code=304, headers=headers)
        if request.method == "HEAD":  # a Range means something to GET only
            return Response(headers=headers | {"content-length": str(len(data))}, media_type=ref.media_type)
        part = ranges.wanted(request.headers.get("range"), request.headers.get("if-range"), tag, len(data))
        if part is None:
            return Response(data, headers=headers, media_type=ref.media_type)
        headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{len(data)}"
        return Response(data[part.start : part.stop], 206, headers, ref.media_type)


def _headers(ref: ArtifactRef, tag: str) -> dict[str, str]:
    return {
        "etag": tag,
        "accept-ranges": "bytes",
        "cache-control": "no-cache",  # a preview's name is used again: ask whether it is still the same
        "content-disposition": f"inline; filename*=utf-8''{quote(ref.name, safe='')}",
        "x-content-type-options": "nosniff",
    }
