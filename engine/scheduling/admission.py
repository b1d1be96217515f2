"""What a worker has left to give, and whether a step may have it: all that it demands at once, or nothing."""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from cards.wire import Hello, ModelIdentity
from engine.scheduling import switching
from engine.scheduling.account import Account
from engine.scheduling.ready import Demand, Modules, Ready
from engine.scheduling.switching import Device, Preference

QUEUE_S = 0.02
"""A worker that is busy is sent more once so little of its work is left: it is not to be idle while word of a step's
end comes and the next is sent. But what it holds cannot be overtaken by what is more urgent, and video steps are long.
"""

SOON_S = 0.001
"""What is so near is there."""


class Room(Struct, kw_only=True, eq=False):
    """One worker while a plan is made: each placement of the plan is taken from it, and from nothing that lasts.

    A placement, of one step or of several that are executed together, takes one of the worker's `credits`. A worker
    that is idle and holds no job takes anything: waiting would not make it fit there.
    """

    worker: str
    pool: str = "default"
    models: tuple[ModelIdentity, ...]
    roles: tuple[str, ...] = ()
    """As which it serves, all if there are none."""
    draining: bool = False
    credits: int
    """That are left."""
    outstanding: int = 0
    """Placements that are with it."""
    coming: bool = False
    """Whether there are more, of a job whose tensors are on their way."""
    queued_s: float = 0.0
    """Seconds of work that are left of them, as predicted."""
    memory_bytes: float = math.inf
    """All that it has."""
    free_bytes: float
    """Beside the weights, the tensors of the jobs at home here, and the peaks of the steps that are with it, or the
    largest that is to come if that is more.
    """
    peak_bytes: float = 0
    """Of the steps that are with it."""
    coming_bytes: float = 0
    """The largest peak that a step of the jobs at home here will have."""
    at_home: Sequence[Account] = ()
    """Those jobs."""
    jobs: dict[str, int] = field(default_factory=dict)
    """Those at home here, by the share that they take."""
    in_use: set[str] = field(default_factory=set)
    """The models whose weights are counted."""
    weights_left: float = math.inf
    """How much more of weights can be there at once."""
    device: Device | None = None
    """What is loaded once it has done what is with it, if that is not all that it could."""
    turn: Preference | None = None
    """Whose steps go here, where models take turns."""
    modules: Modules | None = None
    """Of the placement that was last made."""
    kept_s: float = math.inf
    """A job waits until there are the bytes for it, so only those come that are done within this time: by then the
    jobs at home here, which it waits for, are not done either.
    """
    jumbo: bool = False
    """Whether a step that takes long is with it."""

    def serves(self, ready: Ready) -> bool:
        plays = not self.roles or ready.role is None or ready.role in self.roles
        return plays and ready.model in self.models and ready.pool in (None, self.pool) and not self.draining

    @property
    def has_place(self) -> bool:
        """Whether one more placement would not wait here for longer than it should."""
        return self.place_in_s < SOON_S

    @property
    def place_in_s(self) -> float:
        """How long until it has a place, if all goes as predicted; for ever if that depends on something else."""
        if self.draining or self.credits <= 0:
            return math.inf
        return self.queued_s - QUEUE_S if self.outstanding else 0.0

    def takes(self, ready: Ready, at_once: int | None = None) -> bool:
        """Whether a step may be placed here now, where `at_once` jobs of a share are in progress at most."""
        if not self.is_turn_of(ready):
            return False
        at_home = ready.home == self.worker
        if not at_home and not self._lets_in(ready, at_once):
            return False
        if not self.outstanding and (at_home or not self.jobs):
            return self.has_place
        return self.has_place and self.fits(ready)

    def goes_behind(self, ready: Ready) -> bool:
        """Whether a step is sent behind what is here: if it follows on just that, or takes no time and no loading.

        Another would be in the way of whatever comes of that, which is not known before it is done.
        """
        follows = ready.bound and self.outstanding == 1
        return not self.outstanding or follows or (ready.demand.seconds < QUEUE_S and not self.loading_s(ready))

    def is_turn_of(self, ready: Ready) -> bool:
        if self.turn is None or self.device is None:
            return True
        return self.turn.goes_first(self.device, switching.wish_of(ready))

    def loading_s(self, ready: Ready) -> float:
        """What loading would take for this step."""
        if self.device is None:
            return 0.0
        return switching.loading_s(self.device, switching.absent(self.device, switching.wish_of(ready)))

    def holds(self, ready: Ready) -> bool:
        """Whether there is room for all weights that a step names, or it has to take them one after the other."""
        return self.device is None or switching.fits(self.device, ready)

    def is_crowded(self, ready: Ready, at_once: int | None) -> bool:
        """Whether one more job of this share would be too many."""
        return at_once is not None and self.jobs.get(ready.share, 0) >= at_once

    def bytes_of(self, ready: Ready) -> float:
        """What a step takes of the memory here, beside what is counted already."""
        return self._bytes_beside(ready, self.peak_bytes)

    def is_large_enough(self, ready: Ready) -> bool:
        """Whether a step would fit if nothing else were here."""
        return ready.demand.nbytes <= self.memory_bytes

    def fits(self, ready: Ready) -> bool:
        """Whether there are the bytes for a step, beside all that is here."""
        return self.bytes_of(ready) <= self.free_bytes

    def fits_when_idle(self, ready: Ready) -> bool:
        """Whether it would once all that is with the worker is done."""
        if ready.home == self.worker or not self.jobs:
            return True
        return self._bytes_beside(ready, 0) <= self.free_bytes + max(0, self.peak_bytes - self.coming_bytes)

    def takes_when_idle(self, ready: Ready, at_once: int | None) -> bool:
        """Whether only what is with the worker, or the turn of others, is in the way of a step."""
        if ready.home != self.worker and not self._lets_in(ready, at_once):
            return False
        return self.serves(ready) and self.fits_when_idle(ready)

    def add(self, ready: Ready) -> None:
        """A step goes to this worker, with the placement that was last made."""
        self.free_bytes -= self.bytes_of(ready)
        self.weights_left -= self._weights_of(ready)
        self.in_use.add(ready.model.name)
        self.peak_bytes += ready.demand.peak_bytes
        self.queued_s += ready.demand.seconds
        if ready.home != self.worker:
            self.jobs[ready.share] = self.jobs.get(ready.share, 0) + 1
            self.coming_bytes = max(self.coming_bytes, ready.demand.coming_bytes)

    def keep_for(self, ready: Ready) -> None:
        """Nothing more comes here that would be in the way of a step which does not fit now."""
        self.kept_s = max((account.left_s for account in self.at_home), default=0.0)
        if self.credits and self.fits_when_idle(ready):
            self.credits = 0  # it will fit once the worker is idle; else jobs that are at home here must end first

    def place(self, *members: Ready) -> None:
        """Members of one placement go to this worker."""
        self.credits -= 1
        self.outstanding += 1
        for ready in members:
            self.queued_s += self.loading_s(ready)
            self.modules = ready.modules
            self.add(ready)

    def _lets_in(self, ready: Ready, at_once: int | None) -> bool:
        return ready.left_s < self.kept_s and not self.is_crowded(ready, at_once)

    def _bytes_beside(self, ready: Ready, peak_bytes: float) -> float:
        """What a step takes where so much is taken by others that run, beside what is counted already."""
        demand, at_home = ready.demand, ready.home == self.worker
        coming = self.coming_bytes if at_home else max(self.coming_bytes, demand.coming_bytes)
        more = max(peak_bytes + demand.peak_bytes, coming) - max(peak_bytes, self.coming_bytes)
        return more + (0 if at_home else demand.resident_bytes) + self._weights_of(ready)

    def _weights_of(self, ready: Ready) -> float:
        return 0 if ready.model.name in self.in_use else min(ready.demand.weights_bytes, self.weights_left)


def lack(demand: Demand, workers: Sequence[Hello]) -> str | None:
    """What is missing for a step that none of these workers can ever run, and there are some."""
    if not workers or any(demand.nbytes <= worker.memory_bytes for worker in workers):
        return None
    largest = max(worker.memory_bytes for worker in workers)
    if demand.weights_bytes >= largest:
        return f"its weights are {gib(demand.weights_bytes)}, the largest worker has {gib(largest)}"
    needs, has = demand.nbytes - demand.weights_bytes, largest - demand.weights_bytes
    return f"needs {gib(needs)} beside the weights, the largest worker has {gib(has)}"


def why(ready: Ready, rooms: Iterable[Room]) -> str | None:
    """What a step waits for that each worker which serves it lacks: bytes that others have now."""
    serving = [room for room in rooms if room.serves(ready)]
    if not serving or any(room.fits(ready) for room in serving):
        return None
    room = max(serving, key=lambda room: (room.free_bytes - room.bytes_of(ready), room.worker))
    free = gib(max(0, room.free_bytes))
    return f"waits for memory: needs {gib(room.bytes_of(ready))}, {room.worker} has {free} beside what is there"


def gib(nbytes: float) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB"
