"""How workers join: each says hello once in a life, and a stranger is asked to."""

import itertools
import logging
from collections.abc import Mapping

from cards.wire import Hello, Introduce, ModelIdentity, Refuse
from engine.clock import Clock
from engine.fleet import Fleet
from engine.link import Link

log = logging.getLogger("keyframe.engine")

WRONG_BLOBS = "this worker's blob folder is not the engine's: start it with the --data folder of the engine"

ASK_THERE = "`engine models check NAME` says there which file of a registered checkpoint differs"


class Door:
    """`blobs` names the engine's blob store; a worker that writes to another one is refused."""

    def __init__(
        self,
        fleet: Fleet,
        link: Link,
        clock: Clock,
        *,
        blobs: str,
        silent_s: float,
        identities: Mapping[str, ModelIdentity],
    ) -> None:
        self._fleet = fleet
        self._link = link
        self._blobs = blobs
        self._silent_s = silent_s
        self._identities = identities
        self._processes: set[tuple[str, int]] = set()
        """The host and process of each that has joined."""
        self._introductions = itertools.count(int(clock.now() * 1000))  # another life of an engine has other numbers
        self._introduced: dict[str, tuple[int, float]] = {}
        """The last introduction that each stranger was asked for, and when."""

    async def refuses(self, hello: Hello) -> bool:
        """Whether it cannot work here; it is told."""
        if hello.blobs == self._blobs:
            return False
        log.warning("refused worker %s: it has another blob folder", hello.worker)
        await self._link.send(hello.worker, Refuse(WRONG_BLOBS))
        return True

    def is_outdated(self, hello: Hello) -> bool:
        """Whether a worker has said this before, or will say another hello: it drops all that it is sent until then."""
        seat = self._fleet.seats.get(hello.worker)
        number, _ = self._introduced.get(hello.worker, (None, 0.0))
        return (seat is not None and seat.hello == hello) or hello.answers not in (0, number)

    def has_let_in(self, hello: Hello) -> None:
        self._processes.add((hello.host, hello.pid))
        self._introduced.pop(hello.worker, None)
        strange = [model.name for model in hello.models if self._identities.get(model.name) != model]
        if strange:
            names = ", ".join(strange)
            log.warning("worker %s has another card or other weights for: %s (%s)", hello.worker, names, ASK_THERE)
        log.info("worker %s joined pool %s with %d ranks", hello.worker, hello.pool, hello.ranks)

    def ended(self, host: str, pid: int) -> bool:
        """Whether a process that has ended had come so far as to join."""
        joined = (host, pid) in self._processes
        self._processes.discard((host, pid))
        return joined

    async def ask(self, worker: str, now: float) -> None:
        """Have a stranger say hello, if it has not just been asked to."""
        number, at = self._introduced.get(worker, (0, -self._silent_s))
        if now - at >= self._silent_s:
            number = next(self._introductions)
            self._introduced[worker] = (number, now)
            await self._link.send(worker, Introduce(number))
