"""What alembic runs: the migrations, in the transaction of the connection that `store.migrate` hands in."""

from alembic import context

from store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
