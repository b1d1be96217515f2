"""How long, how often, against whom, and where."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from ops.bench.store.postgres import running_postgres


class Options(Struct, frozen=True, kw_only=True):
    data: Path
    new_store: Callable[[str], str]
    """Makes an empty store in a database, `sqlite` or `postgres`, and returns its URL."""
    databases: tuple[str, ...]
    peers: bool
    rounds: int
    seconds: float
    """Of one contender in one round."""
    tail_s: float
    events: int
    """In the store that is compared to an empty one."""
    quick: bool


@contextmanager
def stores(data: Path, databases: tuple[str, ...]) -> Iterator[Callable[[str], str]]:
    numbers = itertools.count()
    with ExitStack() as stack:
        new_database = stack.enter_context(running_postgres()) if "postgres" in databases else None

        def new_store(database: str) -> str:
            if database == "sqlite":
                return f"sqlite:///{data / f'{next(numbers)}.db'}"
            assert new_database is not None
            return new_database()

        yield new_store
