"""What one job will take, as far as is known, and how its next step is lined up."""

from msgspec import Struct, field

from engine.scheduling.cost import Priced
from engine.scheduling.forecast import Forecast
from engine.scheduling.ready import Group


class Account(Struct):
    """Times are on the monotonic clock."""

    submitted_at: float
    deadline: float | None
    forecast: Forecast
    order: int = 0
    since: float = 0.0
    """When the step that is lined up was."""
    share: str = ""
    left_s: float = 0.0
    """Predicted device time of all that it has before it, as of the step that was lined up last."""
    resident_bytes: int = 0
    coming_bytes: int = 0
    """The largest peak of its steps on such a worker, from the node on whose place and role these are."""
    coming_from: tuple[int, str | None] = (-1, None)
    joins: tuple[int, int, Group | None] = (-1, 0, None)
    """The node that the job was in, how much was known of what runs together, and the group of the steps after it."""
    priced: dict[tuple[str, str, str, str], Priced] = field(default_factory=dict)
    later: tuple[int, str, float] = (-1, "", 0.0)
    """The node that the job was in, the device, and what the nodes after it would take there."""
