"""Streams of events, their checkpoints and inline blobs, idempotency keys, and the list of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
POSITION = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "streams",
        sa.Column("stream", NAME, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("stream", name="streams_pk"),
    )
    op.create_table(
        "events",
        sa.Column("position", POSITION, sa.Identity(), nullable=False),
        sa.Column("stream", NAME, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("position", name="events_pk"),
        sa.UniqueConstraint("stream", "version", name="events_one_of_a_version"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_of_a_stream", "events", ["stream", "position"])
    op.create_table(
        "checkpoints",
        sa.Column("stream", NAME, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("stream", name="checkpoints_pk"),
    )
    op.create_table(
        "blobs",
        sa.Column("digest", NAME, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="blobs_pk"),
    )
    op.create_table(
        "idempotency",
        sa.Column("key", NAME, nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("stream", NAME, nullable=False),
        sa.PrimaryKeyConstraint("key", name="idempotency_pk"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", NAME, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("submitted_at", sa.Float(53), nullable=False),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="jobs_pk"),
    )
    op.create_index("jobs_by_age", "jobs", ["submitted_at", "id"])
    op.create_index("jobs_by_turn", "jobs", ["open", sa.text("priority DESC"), "submitted_at", "id"])
