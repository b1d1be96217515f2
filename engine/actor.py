"""A job's actor: the one place where its log grows.

A turn is: decide, fold, queue the append. The append is durable later, in the order of turns, and only then is anyone
told; `job` is what has been decided, `durable` what may be seen. An actor whose append failed is dropped and loaded
from its log again: recovery is the only way to start.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence

import msgspec
from msgspec import Struct

from cards.loop import LoopState
from cards.wire import Refold, UnitId, WorkPlan
from engine import events as facts
from engine.errors import UnreadableBody
from engine.events import JobEvent, StepCompleted
from engine.job import Job, State, fold
from engine.needs import needs, useful
from engine.scheduling.account import Account
from engine.views import listed, row
from store.journal import Append, Appended, Blob, IdempotencyKey, Journal, Loaded


class Saved(Struct, frozen=True):
    """A checkpoint's body: all that is needed to go on without reading what came before."""

    job: Job
    state: LoopState | None
    refolds: tuple[Refold, ...] = ()
    served_s: float = 0.0
    """Device time that the job has had: of the steps that it has completed, those that were rewound among them."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Saved).decode


def saved_body(saved: Saved) -> bytes:
    return _encode(saved)


class Pending(Struct):
    """A turn on its way to disk. `told` is done once it is durable and subscribers have been woken.

    `durable` is None while the append waits for the actor's claim: until that is durable, the epoch may be another's.
    """

    actor: "JobActor"
    append: Append
    after: Job
    told: "asyncio.Future[Job]"
    durable: Awaitable[Appended] | None = None


class Sent(Struct, frozen=True):
    """A unit that is with a worker."""

    id: UnitId
    plan: WorkPlan


class Held(Struct, frozen=True):
    """What a worker holds of a job, by digest."""

    worker: str
    digests: frozenset[str]


class Moves(Struct):
    """How often jobs came to workers and left them. What was made of that stays true until it is another number."""

    count: int = 0


class JobActor:
    def __init__(self, journal: Journal, loaded: Loaded, saved: Saved) -> None:
        self._journal = journal
        self.job = self.durable = saved.job
        self.state = saved.state
        self.refolds = saved.refolds
        """What makes those of the state's tensors again that are not stored."""
        self.served_s = saved.served_s
        self.version = loaded.version
        self.epoch = loaded.epoch
        self.plan: WorkPlan | None = None
        """The step that comes after the state."""
        self.out: deque[Sent] = deque()
        """The units that are with a worker: that step, and perhaps the one that is sure to follow it."""
        self.lined_up = False
        """Whether a step waits for a worker."""
        self.home: str | None = None
        """The worker that holds the job's tensors, and what it holds of them."""
        self.left: Held | None = None
        """Where they were before: they stay there until the one that holds them now has answered, which may fetch them.
        """
        self.strays: list[str] = []
        """Workers that are to forget the job and have not been told."""
        self.held: frozenset[str] = frozenset()
        self.inline: dict[str, bytes] = {}
        """The bytes of the state's small blobs, for a worker that lacks them."""
        self.moves = Moves()
        """Of all jobs, once it is among those that are driven here."""
        self.undurable = 0
        self._behind: list[Pending] | None = None
        """What waits for the claim that is on its way to disk, if one is."""
        self.told: asyncio.Future[Job]
        """Done once all that has been decided so far may be seen."""
        self.waits = False
        """For the blob store, which refused the last step's bytes."""
        self.parting = False
        """About to leave this engine once nothing is out: no step is sent meanwhile."""
        self.account: Account | None = None
        """What it will take; None until it is opened for a job that was claimed."""

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing for this engine to do about the job, now or when something comes back."""
        return self.job.state not in (State.RUNNING, State.CANCELLING) and not self.out

    def write(
        self,
        events: Sequence[JobEvent],
        *,
        at: float,
        lease: str | None,
        claim: bool = False,
        inline: dict[str, bytes] | None = None,
    ) -> Pending:
        """Fold the events and queue them as one append, with a checkpoint of where the job then is.

        `self.state` must already be the state after them. The append is refused once the `lease` has run out.
        """
        before = listed(self.job)
        for event in events:
            self.job = fold(self.job, event)
        self.served_s += _took(events)
        self._let_go()
        append = Append(
            stream=stream(self.job.id),
            expected=self.version,
            epoch=self.epoch,
            at=at,
            events=tuple(facts.encode(event) for event in events),
            claim=claim,
            checkpoint=_encode(Saved(self.job, self.state, self.refolds, self.served_s)),
            blobs=tuple(Blob(digest, data) for digest, data in (inline or {}).items()),
            row=row(self.job, at) if listed(self.job) != before else None,
            lease=lease,
        )
        self.version += len(events)
        self.epoch += claim
        self.undurable += 1
        self.told = asyncio.get_running_loop().create_future()
        self.told.add_done_callback(_seen)  # not everyone who writes waits to be told
        return self._queue(Pending(self, append, self.job, self.told))

    def claimed(self) -> None:
        """The claim is durable: nobody else writes under this epoch."""
        behind, self._behind = self._behind or [], None
        for pending in behind:
            self._queue(pending)

    def _queue(self, pending: Pending) -> Pending:
        if self._behind is not None:
            self._behind.append(pending)
        else:
            pending.durable = self._journal.append(pending.append)
            self._behind = [] if pending.append.claim else None
        return pending

    def _let_go(self) -> None:
        """Of what the job's state has no use for."""
        self.lined_up = self.lined_up and self.job.state is State.RUNNING
        if self.job.state not in (State.RUNNING, State.PAUSED, State.CANCELLING):
            self.out.clear()
        if self.job.terminal:
            self.state = None
        self.refolds = useful(self.refolds, self.job, self.state)

    def move_to(self, worker: str | None) -> None:
        """The job's next step runs with this worker, which holds nothing of it yet if it is another one."""
        if worker == self.home:
            return
        self.moves.count += 1
        before, self.left = self.left, Held(self.home, self.held) if self.home is not None else None
        back = before is not None and before.worker == worker
        if before is not None and not back:
            self.strays.append(before.worker)
        self.home, self.held = worker, before.digests if before is not None and back else frozenset()

    def leave(self) -> None:
        """The worker that held the job's tensors is gone. The one that it fetched them from still has them."""
        self.out.clear()
        self.moves.count += 1
        before, self.left = self.left, None
        self.home = before.worker if before is not None else None
        self.held = before.digests if before is not None else frozenset()

    def dismiss(self) -> list[str]:
        """The workers that have nothing to do with the job any more: it has what it needs where it is."""
        dismissed = [*self.strays, *([self.left.worker] if self.left is not None else [])]
        self.left, self.strays = None, []
        return dismissed

    def take_back(self, unit: UnitId) -> None:
        """A unit did not leave: it is not out, nor is what was to follow it."""
        while any(sent.id == unit for sent in self.out):
            self.out.pop()

    def next_unit(self, serial: int) -> UnitId:
        """The name of the unit to be sent now."""
        return UnitId(self.job.id, self.epoch, self.version, self.job.attempt, serial)

    def keep_inline(self, arrived: dict[str, bytes]) -> None:
        """Hold on to the small blobs that the job still needs."""
        have = self.inline | arrived
        self.inline = {digest: have[digest] for digest in needs(self.job, self.state, self.refolds) if digest in have}


def _seen(told: "asyncio.Future[Job]") -> None:
    if not told.cancelled():
        told.exception()


def stream(job: str) -> str:
    return f"job/{job}"


def new_stream(
    events: Sequence[JobEvent],
    saved: Saved,
    at: float,
    key: IdempotencyKey | None = None,
    blobs: tuple[Blob, ...] = (),
) -> Append:
    """The append that makes a job. It has no actor yet: like any other, it is found and claimed."""
    return Append(
        stream=stream(saved.job.id),
        expected=0,
        epoch=0,
        at=at,
        events=tuple(facts.encode(event) for event in events),
        checkpoint=_encode(saved),
        row=row(saved.job, at),
        key=key,
        blobs=blobs,
    )


def replay(history: Sequence[JobEvent]) -> Job:
    """Fold a whole log. Raises IllegalMove."""
    job: Job | None = None
    for event in history:
        job = fold(job, event)
    assert job is not None, "a stream starts with JobSubmitted"
    return job


def restore(loaded: Loaded) -> Saved:
    """The job and the state at the head of its stream: the last checkpoint and the few events after it.

    Raises HistoryError.
    """
    later = [facts.decode(event) for event in loaded.events]
    if loaded.checkpoint is None:
        return Saved(replay(later), None, served_s=_took(later))
    try:
        saved = _decode(loaded.checkpoint.body)
    except (msgspec.DecodeError, TypeError) as error:  # a text where bytes were, as of an event
        raise UnreadableBody(f"the checkpoint at version {loaded.checkpoint.version}", str(error)) from error
    job = saved.job
    for event in later:
        job = fold(job, event)
    return Saved(job, saved.state, saved.refolds, saved.served_s + _took(later))


def _took(events: Sequence[JobEvent]) -> float:
    return sum(event.seconds for event in events if isinstance(event, StepCompleted))
