"""The metadata of the job list. SQLite keeps whatever somebody puts into the column, and no listing must end at it."""

from typing import Any

import msgspec
from sqlalchemy import Boolean, ColumnElement, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from store.schema import jobs


class _AsItLies(FunctionElement[Any]):
    """Bytes, whatever is there; decoded already where the database takes nothing but JSON."""

    inherit_cache = True


class _IsObject(FunctionElement[bool]):
    type = Boolean()
    inherit_cache = True


@compiles(_AsItLies)
def _decoded(element: _AsItLies, compiler: SQLCompiler, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(_AsItLies, "sqlite")
def _bytes(element: _AsItLies, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **options)} AS BLOB)"


@compiles(_IsObject)
def _typed(element: _IsObject, compiler: SQLCompiler, **options: Any) -> str:
    return f"(json_typeof({compiler.process(element.clauses, **options)}) = 'object')"


@compiles(_IsObject, "sqlite")
def _valid_and_typed(element: _IsObject, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    return f"(CASE WHEN json_valid({column}) THEN json_type({column}) = 'object' ELSE 0 END)"


READABLE: ColumnElement[bool] = _IsObject(jobs.c.metadata)


def columns(table: Table) -> list[ColumnElement[Any]]:
    """All of a table's, with metadata as `metadata_of` takes it."""
    return [_AsItLies(one).label(one.name) if one is jobs.c.metadata else one for one in table.c]


def metadata_of(value: object) -> dict[str, str] | None:
    """None for what is no JSON object."""
    if isinstance(value, bytes):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return None
    return value if isinstance(value, dict) else None
