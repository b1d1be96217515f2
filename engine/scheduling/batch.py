"""Which steps run together, and how long one waits for a partner."""

from collections.abc import Iterable

from engine.scheduling.admission import Room
from engine.scheduling.ready import Ready


def members(
    first: Ready, partners: Iterable[Ready], room: Room, *, most: int, most_s: float, at_once: int | None
) -> tuple[Ready, ...]:
    """`first` and those that run with it there, as far as they fit. It has been placed in the room; they are here.

    A partner comes along only if its tensors are there, or nowhere yet.
    """
    together = [first]
    for ready in partners:
        if len(together) == most or first.demand.seconds * (len(together) + 1) > most_s:
            break
        if ready.job != first.job and _joins(ready, room, at_once):
            room.add(ready)
            together.append(ready)
    return tuple(together)


def holds(ready: Ready, partners: int, now: float, *, most: int, most_s: float, wait_s: float) -> bool:
    """Whether a step waits for partners, of which there are `partners`: not for ever, and not until it is late."""
    if ready.group is None or partners >= most or now >= ready.since + wait_s:
        return False
    if ready.demand.seconds * (partners + 1) > most_s:
        return False
    return ready.deadline is None or ready.since + wait_s + ready.left_s <= ready.deadline


def _joins(ready: Ready, room: Room, at_once: int | None) -> bool:
    if ready.home == room.worker:
        return room.serves(ready) and room.fits(ready)
    movable = ready.home is None and not ready.bound
    return movable and not room.is_crowded(ready, at_once) and room.serves(ready) and room.fits(ready)
