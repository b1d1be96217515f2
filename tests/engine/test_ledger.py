"""The order in which turns become durable, and what becomes of those that cannot."""

import anyio
import pytest

from cards import registry
from cards.request import resolve
from engine.actor import JobActor, Saved, new_stream, replay, restore
from engine.check import check
from engine.errors import StoreTrouble
from engine.events import (
    CancelRequested,
    JobAdmitted,
    JobCancelled,
    JobEvent,
    JobSubmitted,
    NodeStarted,
    NumericsChanged,
    decode,
)
from engine.hub import Hub
from engine.job import State
from engine.ledger import Ledger
from store.memory import MemoryJournal
from tests import toy
from tests.sim import SimClock, request

CANCEL: tuple[JobEvent, ...] = (CancelRequested(reason=""), JobCancelled())
ADMIT: tuple[JobEvent, ...] = (
    JobAdmitted(engine="e"),
    NodeStarted(node="prepare", loop="prepare", semantics="toy.prepare/1", steps=1),
)


async def two_actors(journal: MemoryJournal) -> tuple[JobActor, JobActor]:
    """Of one job, both loaded before either has claimed it."""
    resolved = resolve(request(), toy.CARD, chance=None)  # type: ignore[arg-type]
    submitted = JobSubmitted(job="j", request=resolved, model=registry.identity(toy.FAMILY), submitted_at=0.0)
    await journal.append(new_stream([submitted], Saved(replay([submitted]), None), 0.0))
    loaded = await journal.load("job/j")
    assert loaded is not None
    return JobActor(journal, loaded, restore(loaded)), JobActor(journal, loaded, restore(loaded))


async def nobody() -> set[str]:
    return set()


async def nothing(actor: JobActor) -> None:
    pass


async def test_nothing_is_written_under_an_epoch_that_another_has_claimed() -> None:
    """Both claims are of as many events: the loser's next turn would fit behind the winner's."""
    journal = MemoryJournal()
    winner, loser = await two_actors(journal)
    ledger = Ledger(journal, SimClock(), Hub(), lease=None, others=nobody, on_told=nothing, on_dropped=nothing)
    ledger.write(winner, CANCEL, claim=True)
    ledger.write(loser, ADMIT, claim=True)
    late = ledger.write(loser, [NumericsChanged(fingerprint="f")])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ledger.tell)
        await ledger.settled()
        tasks.cancel_scope.cancel()

    with pytest.raises(StoreTrouble):
        await late
    history = [decode(event) for event in await journal.read("job/j")]
    assert replay(history).state is State.CANCELLED
    assert (await check(journal)).problems == ()


async def test_what_was_decided_behind_a_claim_is_durable_after_it_in_order() -> None:
    journal = MemoryJournal()
    actor, _ = await two_actors(journal)
    ledger = Ledger(journal, SimClock(), Hub(), lease=None, others=nobody, on_told=nothing, on_dropped=nothing)
    ledger.write(actor, ADMIT, claim=True)
    for name in "abc":
        ledger.write(actor, [NumericsChanged(fingerprint=name)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ledger.tell)
        await ledger.settled()
        tasks.cancel_scope.cancel()

    history = [decode(event) for event in await journal.read("job/j")]
    assert [event.fingerprint for event in history if isinstance(event, NumericsChanged)] == ["a", "b", "c"]
    assert actor.durable == actor.job
