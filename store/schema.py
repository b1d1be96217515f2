"""The tables. Migrations make them; this is what the code reads and writes."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

REVISION = "0004"
"""The migration that this code is written for."""

metadata = MetaData()

# Names are compared byte by byte on both databases, so that their order does not depend on a locale.
_Name = Text().with_variant(Text(collation="C"), "postgresql")

# SQLite gives out positions only to a column declared INTEGER.
_Position = BigInteger().with_variant(Integer(), "sqlite")

streams = Table(
    "streams",
    metadata,
    Column("stream", _Name, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    PrimaryKeyConstraint("stream", name="streams_pk"),
)

events = Table(
    "events",
    metadata,
    Column("position", _Position, Identity(), nullable=False),
    Column("stream", _Name, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    PrimaryKeyConstraint("position", name="events_pk"),
    UniqueConstraint("stream", "version", name="events_one_of_a_version"),
    sqlite_autoincrement=True,  # without it a position is given out again once the newest row is deleted
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("stream", _Name, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("stream", name="checkpoints_pk"),
)

blobs = Table(
    "blobs",
    metadata,
    Column("digest", _Name, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("seen_at", Float(53), nullable=False),  # when an append last brought it, by the database's clock
    PrimaryKeyConstraint("digest", name="blobs_pk"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("key", _Name, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("stream", _Name, nullable=False),
    PrimaryKeyConstraint("key", name="idempotency_pk"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", _Name, nullable=False),
    Column("status", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("submitted_at", Float(53), nullable=False),
    Column("updated_at", Float(53), nullable=False),
    Column("open", Boolean, nullable=False),
    Column("owner", _Name, nullable=True),
    Column("attempts", BigInteger, nullable=False),
    Column("metadata", JSON, nullable=False),
    PrimaryKeyConstraint("id", name="jobs_pk"),
    Index("jobs_by_age", "submitted_at", "id"),
    Index("jobs_by_turn", "open", text("priority DESC"), "submitted_at", "id"),
)

engines = Table(
    "engines",
    metadata,
    Column("name", _Name, nullable=False),
    Column("url", Text, nullable=False),
    Column("models", Text, nullable=False),  # JSON
    Column("expires_at", Float(53), nullable=False),  # by the database's clock
    PrimaryKeyConstraint("name", name="engines_pk"),
)

# One row: the store's own name, drawn when it was made. It is not in a backup: what is restored is another store.
identity = Table("identity", metadata, Column("store", Text, nullable=False))

# The oldest revision whose code may still work on this store. A migration that only adds leaves it as it was.
compatibility = Table("compatibility", metadata, Column("requires", Text, nullable=False))
