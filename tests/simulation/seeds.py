"""Seeds that found something. They always run.

A seed stands for what the simulator draws from it: after a change of the simulator it is another world, and the bug it
found is then held by the test that its commit brought.
"""

from msgspec import Struct


class Kept(Struct, frozen=True):
    seed: int
    engines: int
    found: str


KEPT: tuple[Kept, ...] = ()
