"""All actors, and the one queue in which their appends become durable.

What is written is decided at once and told in order, when it is on disk and not before.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from engine.actor import JobActor, Moves, Pending, restore, stream
from engine.clock import Clock
from engine.errors import DrivenElsewhere, JobNotFound, Overtaken, StoreTrouble
from engine.events import JobEvent
from engine.hub import Hub
from engine.job import Job
from store.errors import StoreError, StreamConflict
from store.journal import Journal, Loaded

log = logging.getLogger("keyframe.ledger")

Followup = Callable[[JobActor], Awaitable[None]]


class Ledger:
    """`lease` is what appends are written under, `others` are the other engines with a live one; `on_told` is called
    after each append that became durable, `on_dropped` after one that did not.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        hub: Hub,
        *,
        lease: str | None,
        others: Callable[[], Awaitable[Collection[str]]],
        on_told: Followup,
        on_dropped: Followup,
    ) -> None:
        self.actors: dict[str, JobActor] = {}
        self.moves = Moves()
        """Also counts who comes to the actors and who is forgotten."""
        self.trouble: str | None = None
        """Why the store took no writes the last time it was asked, or None."""
        self._journal = journal
        self._clock = clock
        self._hub = hub
        self._lease = lease
        self._others = others
        self._on_told = on_told
        self._on_dropped = on_dropped
        self.shared = journal.shared
        self._departures: dict[int, set[str]] = {}
        self._pending: asyncio.Queue[Pending] = asyncio.Queue()

    async def find(self, job_id: str) -> JobActor:
        """The actor that drives the job, or one made of its log if nobody here does: to write, it must claim it.

        Raises JobNotFound, DrivenElsewhere, StoreTrouble, HistoryError.
        """
        while True:
            if (actor := self.actors.get(job_id)) is not None:
                return actor
            with self.departures() as departed:
                others = await self._alive()
                loaded = await self._load(job_id)
            if job_id not in self.actors and job_id not in departed:
                actor = JobActor(self._journal, loaded, restore(loaded))
                if actor.job.owner in others:
                    raise DrivenElsewhere(job_id, actor.job.owner or "")
                return actor

    @contextmanager
    def departures(self) -> Iterator[set[str]]:
        """The jobs that actors have left while the block read logs: what it read of them may be old.

        An actor of an old log is not stopped by its first write alone: if that is refused, the next might count to the
        very version and epoch that another has written meanwhile.
        """
        departed: set[str] = set()
        self._departures[id(departed)] = departed
        try:
            yield departed
        finally:
            del self._departures[id(departed)]

    async def _alive(self) -> Collection[str]:
        try:
            return await self._others() if self.shared else ()
        except StoreError as error:
            raise StoreTrouble(str(error)) from error

    async def _load(self, job_id: str) -> Loaded:
        try:
            loaded = await self._journal.load(stream(job_id))
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        if loaded is None:
            raise JobNotFound(job_id)
        return loaded

    async def overtaken(self, actor: JobActor, epoch: int) -> None:
        """Somebody has written under this epoch. Raises Overtaken if it is a later one than the actor's."""
        if epoch > actor.epoch and self.drives(actor):
            self._forget(actor)
            await self._on_dropped(actor)
            raise Overtaken(f"job {actor.job.id} is another engine's by now")

    def drives(self, actor: JobActor) -> bool:
        return self.actors.get(actor.job.id) is actor

    def write(
        self,
        actor: JobActor,
        events: Sequence[JobEvent],
        *,
        claim: bool = False,
        inline: dict[str, bytes] | None = None,
    ) -> "asyncio.Future[Job]":
        """One turn. What comes back is done when people have been told, or raises StoreTrouble; await it shielded.

        An actor that is new here takes its log over with its first write.
        """
        if not self.drives(actor):
            claim = True
            self.actors[actor.job.id], actor.moves = actor, self.moves
            self.moves.count += 1
        pending = actor.write(events, at=self._clock.now(), lease=self._lease, claim=claim, inline=inline)
        self._pending.put_nowait(pending)
        return pending.told

    async def tell(self) -> None:
        """Forever: wait for the oldest append, then let it be seen."""
        while True:
            pending = await self._pending.get()
            try:
                await _durable(pending)
            except StoreError as error:
                await self._drop(pending, error)
            else:
                await self._told(pending)
            self._pending.task_done()

    def forget(self) -> list[JobActor]:
        """Drop all actors: others may have their jobs. Returns them."""
        dropped = list(self.actors.values())
        for actor in dropped:
            self._forget(actor)
            self._hub.wake(actor.job.id)
        return dropped

    async def settled(self) -> None:
        """Return once nothing is on its way to disk."""
        await self._pending.join()

    async def _told(self, pending: Pending) -> None:
        actor = pending.actor
        self.trouble = None
        actor.durable = pending.after
        actor.undurable -= 1
        if pending.append.claim:
            actor.claimed()
        if not pending.told.done():  # its caller may have been cancelled; the append stands
            pending.told.set_result(pending.after)
        self._hub.wake(actor.job.id)
        self.let_go(actor)
        await self._on_told(actor)

    def let_go(self, actor: JobActor) -> None:
        """Forget an actor that has nothing left to do. Its log has all of it."""
        if actor.at_rest and not actor.undurable and self.drives(actor):
            self._forget(actor)

    def _forget(self, actor: JobActor) -> None:
        del self.actors[actor.job.id]
        self.moves.count += 1
        for departed in self._departures.values():
            departed.add(actor.job.id)

    async def _drop(self, pending: Pending, error: StoreError) -> None:
        """The actor believed what did not become true: forget it. The log knows better and is loaded again."""
        actor = pending.actor
        if not isinstance(error, StreamConflict):
            self.trouble = str(error)
        actor.undurable -= 1
        if not pending.told.done():
            kind = Overtaken if isinstance(error, StreamConflict) else StoreTrouble
            pending.told.set_exception(kind(str(error)))
        if self.drives(actor):
            log.warning("dropped an actor whose append failed: %s", error, extra={"job": actor.job.id})
            self._forget(actor)
            self._hub.wake(actor.job.id)
            await self._on_dropped(actor)


async def _durable(pending: Pending) -> None:
    """Raises StoreError."""
    append = pending.append
    if pending.durable is None:  # it follows a claim, and that was told before or failed
        raise StreamConflict(append.stream, append.expected, append.epoch)
    await pending.durable
