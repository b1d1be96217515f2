"""Hash chains, leases of engines, owners and more of what jobs are found by, and the age of inline blobs."""

import sqlalchemy as sa
from alembic import op

from store.chain import link

revision = "0002"
down_revision = "0001"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

BATCH = 1000

EVENTS = sa.table(
    "events",
    *(sa.column(name) for name in ("position", "stream", "version", "epoch", "type", "at", "body", "hash")),
)
STREAMS = sa.table("streams", sa.column("stream"), sa.column("hash"))


def upgrade() -> None:
    empty = sa.text("x''" if op.get_bind().dialect.name == "sqlite" else "''")
    _add("streams", sa.Column("hash", sa.LargeBinary(), nullable=False, server_default=empty))
    _add("events", sa.Column("hash", sa.LargeBinary(), nullable=False, server_default=empty))
    _add("blobs", sa.Column("seen_at", sa.Float(53), nullable=False, server_default="0"))
    _add("jobs", sa.Column("owner", NAME, nullable=True))
    _add("jobs", sa.Column("attempts", sa.BigInteger(), nullable=False, server_default="1"))
    _add("jobs", sa.Column("metadata", sa.JSON(), nullable=False, server_default="{}"))
    op.create_table(
        "engines",
        sa.Column("name", NAME, nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("models", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("name", name="engines_pk"),
    )
    compatibility = op.create_table("compatibility", sa.Column("requires", sa.Text(), nullable=False))
    op.bulk_insert(compatibility, [{"requires": revision}])  # older code would break the chains
    _chain(op.get_bind())


def _add(table: str, column: sa.Column[object]) -> None:
    op.add_column(table, column)


def _chain(connection: sa.Connection) -> None:
    """Link the events that are there, in the order in which they were committed."""
    last: dict[str, bytes] = {}
    after = 0
    while page := connection.execute(
        sa.select(EVENTS).where(EVENTS.c.position > after).order_by(EVENTS.c.position).limit(BATCH)
    ).all():
        links = []
        for position, stream, *fields, _ in page:
            last[stream] = link(last.get(stream, b""), stream, *fields)
            links.append({"place": position, "link": last[stream]})
        move = sa.update(EVENTS).where(EVENTS.c.position == sa.bindparam("place")).values(hash=sa.bindparam("link"))
        connection.execute(move, links)
        after = page[-1].position
    heads = [{"which": stream, "link": tip} for stream, tip in last.items()]
    if heads:
        tip = sa.update(STREAMS).where(STREAMS.c.stream == sa.bindparam("which")).values(hash=sa.bindparam("link"))
        connection.execute(tip, heads)
