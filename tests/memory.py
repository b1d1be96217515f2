"""How much memory something takes, to the byte: torch's, which tracemalloc does not see, and Python's."""

import tracemalloc
from collections.abc import Callable

from tests.parity import meta


def most(run: Callable[[], object]) -> int:
    """The bytes of what is made while it runs, at most at once. It is run twice, once for each of the two."""
    tensors = meta.work(run).activations
    tracemalloc.start()
    try:
        run()
        return tensors + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
