"""A name of the store's own. It only adds: code of the revision before works on."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    identity = op.create_table("identity", sa.Column("store", sa.Text(), nullable=False))
    op.bulk_insert(identity, [{"store": secrets.token_hex(16)}])
