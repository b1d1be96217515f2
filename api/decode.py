"""msgspec's refusals in a caller's words: which field, what is wrong with it, and what would be right."""

import re
from typing import get_type_hints

import msgspec
from msgspec import Struct

from api.errors import BadInput

_PATH = re.compile(r"(?P<problem>.*) - at `\$\.(?P<field>.*)`", re.DOTALL)
_NAMED = re.compile(r"Object (?P<what>contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL)
_ENTRY = "[...]"


def refusal(error: msgspec.ValidationError, kind: type[Struct]) -> BadInput:
    """What is wrong with data of the right syntax."""
    problem, field = str(error), None
    if path := _PATH.fullmatch(problem):
        problem, field = path["problem"], path["field"].removesuffix(_ENTRY)
    if named := _NAMED.fullmatch(problem):
        known = ", ".join(_inside(kind, field).__struct_encode_fields__) or "none"
        return BadInput(
            f"{field}.{named['field']}" if field else named["field"],
            "is missing" if named["what"].startswith("missing") else f"is no field here; there are: {known}",
        )
    return BadInput(field, problem)


def _inside(kind: type[Struct], path: str | None) -> type[Struct]:
    """The Struct at a path of field names."""
    for name in path.split(".") if path else ():
        kind = get_type_hints(kind)[name]
    return kind


def malformed(error: msgspec.DecodeError, data: bytes) -> BadInput:
    """What is wrong with bytes that are no JSON, and where."""
    problem = str(error).removeprefix("JSON is malformed: ")
    if "(byte" not in problem:
        problem += f" (byte {_first_bad_byte(data)})"
    return BadInput(None, f"the body is malformed JSON: {problem}")


def _first_bad_byte(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)
