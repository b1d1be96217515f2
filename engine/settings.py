"""What an engine is told when it is made."""

from msgspec import Struct

from engine.scheduling.policy import DEFAULT
from engine.scheduling.scheduler import Limits

MAX_ACTIVE = 1024
"""Measured: with so many, sending a step takes as long as with a few, and a tenth of a millisecond more if its job
moves; looking for work takes 4 ms.
"""


class EngineSettings(Struct, frozen=True, kw_only=True):
    name: str
    blobs: str = ""
    """The name of the blob store; a worker that writes to another one is refused."""
    max_active: int = MAX_ACTIVE
    """Jobs that are held in memory and driven at once; the others wait in the log, and the policy does not see them."""
    max_deaths: int = 3
    """Workers that a job may bring down, without completing a step in between, before it is failed for good.

    In all it may bring down three times as many.
    """
    window: int = 8
    """Steps of one job that may be executed and not yet durable."""
    reconcile_s: float = 1.0
    watch_s: float = 0.5
    silent_s: float = 5.0
    lease_s: float = 10.0
    """How long others leave this engine's jobs alone without a renewal, where several share a store."""
    url: str = ""
    """Where the others, and people, reach this engine."""
    cancel_grace_s: float = 30.0
    """How long a running step may hold up a cancel before its worker is killed."""
    policy: str = DEFAULT
    limits: Limits = Limits()
    patience_s: float = 30.0
    """How long a job whose next step is too large for all workers waits for a larger one before it is failed."""
