"""The store's schema against the code's: made where there is none, and otherwise the same or refused."""

from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table

from store.errors import SchemaMismatch
from store.schema import REVISION, compatibility

VERSIONS = table("alembic_version", column("version_num"))


def revision(connection: Connection) -> str | None:
    """The revision of the store, None if it is empty."""
    if not inspect(connection).has_table(VERSIONS.name):
        return None
    return connection.scalar(select(VERSIONS.c.version_num))


def required(connection: Connection) -> str | None:
    """The oldest revision whose code may work on the store; None for a store from before it was said."""
    if not inspect(connection).has_table(compatibility.name):
        return None
    return connection.scalar(select(compatibility.c.requires))


def make_or_require_schema(connection: Connection) -> None:
    """Raises SchemaMismatch."""
    if revision(connection) is None:
        migrate(connection)
    require_schema(connection)


def require_schema(connection: Connection) -> None:
    """This code can work on the store: it is at this code's revision, or at a later one that only added to it.

    While a deploy rolls, engines of both versions run on one store: the migration adds (expand), and what the old code
    needs is taken away by one that comes later (contract). Raises SchemaMismatch.
    """
    found = revision(connection)
    if found is None or found < REVISION:
        at = f"at revision {found}" if found else "empty"
        raise SchemaMismatch(f"the store is {at}, this engine needs revision {REVISION}: run `engine-admin db upgrade`")
    requires = connection.scalar(select(compatibility.c.requires))
    if requires is None:
        raise SchemaMismatch("the store does not say which engines it takes: its table compatibility is empty")
    if requires > REVISION:
        raise SchemaMismatch(
            f"the store is at revision {found} and takes engines from {requires} on; this one is of {REVISION}: "
            "upgrade the engine"
        )


def migrate(connection: Connection, to: str = REVISION) -> None:
    """Bring the store up to a revision, in the transaction that is open. Raises SchemaMismatch."""
    found = revision(connection)
    if found is not None and found > REVISION:
        require_schema(connection)
        return

    # Imported here because a start with nothing to migrate should not wait for it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def _scripts() -> Path:
    """The folder of the package `migrations`, found by name: the arrows allow no import of it."""
    package = find_spec("migrations")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent
