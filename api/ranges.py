"""Conditional and partial requests for bytes that have an ETag (RFC 9110, sections 13 and 14). Pure."""

import re

from api.errors import RangeUnsatisfiable

_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*", re.IGNORECASE)


def etag(digest: str) -> str:
    return f'"{digest}"'


def unchanged(if_none_match: str | None, tag: str) -> bool:
    """Whether the caller has the bytes already. The comparison is the weak one."""
    if if_none_match is None:
        return False
    theirs = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag in theirs or theirs == ["*"]


def wanted(header: str | None, if_range: str | None, tag: str, nbytes: int) -> range | None:
    """The bytes that a Range header asks for, or None for all of them.

    A header that is not one well-formed range of bytes is ignored, as is one for bytes that have changed since.
    Raises RangeUnsatisfiable.
    """
    asked = _RANGE.fullmatch(header or "")
    if asked is None or if_range not in (None, tag):
        return None
    first, last = asked.groups()
    if not first:
        return _suffix(last, nbytes)
    if last and int(last) < int(first):
        return None
    if int(first) >= nbytes:
        raise RangeUnsatisfiable(nbytes)
    return range(int(first), min(int(last) + 1, nbytes) if last else nbytes)


def _suffix(length: str, nbytes: int) -> range | None:
    if not length:
        return None
    if int(length) == 0 or nbytes == 0:
        raise RangeUnsatisfiable(nbytes)
    return range(max(0, nbytes - int(length)), nbytes)
