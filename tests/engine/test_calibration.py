"""What steps took is kept in the log, seldom, and never in the way of a job."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from cards.registry import Registry
from cards.wire import ModelIdentity, StepError, StepResult, UnitId
from engine.accounts import Accounts
from engine.calibration import Calibration
from engine.fleet import Fleet, Reserved
from engine.peers import Peers
from engine.scheduling.cost import CostModel, Priced, StepKind
from engine.scheduling.policy import POLICIES
from engine.scheduling.ready import Group
from store.errors import StoreUnavailable
from store.journal import Append, NewEvent
from store.memory import MemoryJournal
from tests import toy
from tests.failing_journals import QueuedJournal
from tests.sim import SimClock, at_once

KIND = StepKind("default", "device=cpu", ModelIdentity("toy", "c", "w"), "count", "count", "8x8x5")
STREAM = "pool/default"


def learnt(*seconds: float, kind: StepKind = KIND) -> CostModel:
    costs = CostModel()
    for one in (9.0, *seconds):
        costs.figure(kind).took(one, "worker")
    return costs


def calibration(journal: MemoryJournal, costs: CostModel) -> Calibration:
    return Calibration(journal, costs, SimClock(), lease=None)


async def events(journal: MemoryJournal) -> int:
    return len(await journal.read(STREAM))


def taught(*results: tuple[int, StepResult]) -> CostModel:
    """By results that came back one after the other, each of a batch of this number."""
    registry = Registry({"toy": toy.FAMILY})
    peers = Peers(MemoryJournal(), "engine")
    accounts = Accounts(registry, Fleet(1.0), POLICIES["deadline"], SimClock(), at_once, peers)
    figure = accounts.costs.figure(KIND)
    figure.took(9.0, "worker")
    priced = Priced(KIND, figure, 0, Group(KIND.model, "count", "count", "8x8x5"))
    for batch, result in results:
        accounts.took(Reserved(batch=batch, model="toy", priced=priced), result, "worker")
    return accounts.costs


def result(seconds: float, **fields: Any) -> StepResult:
    return StepResult(UnitId("j", 1, 1, 1), seconds=seconds, **fields)


def test_neither_what_was_had_from_an_equal_step_nor_what_failed_is_learnt() -> None:
    broken = StepError("error", "it broke")
    costs = taught((1, result(2.0)), (2, result(0.0, reused=True)), (3, result(0.1, error=broken)))

    assert (costs.figure(KIND).mean_s, costs.figure(KIND).samples) == (2.0, 1)


def test_loading_is_no_part_of_a_step_and_the_step_after_it_is_a_first_one() -> None:
    costs = taught((1, result(2.0)), (2, result(50.0, loading_s=30.0)), (3, result(2.0)))

    figure = costs.figure(KIND)
    assert (figure.mean_s, figure.samples, figure.cold) == (2.0, 2, 2)


def test_a_batch_is_one_sample_but_for_its_first_and_one_in_which_a_step_failed() -> None:
    shared = {"batch": 2, "batch_seconds": 4.0}
    first = [(1, result(10.0, batch=2, batch_seconds=20.0))] * 2
    failed = [(2, result(8.0, batch=2, batch_seconds=16.0, error=StepError("error", "")))]
    failed += [(2, result(8.0, batch=2, batch_seconds=16.0))]
    costs = taught(*first, *failed, *[(3, result(2.0, **shared))] * 2)

    together = costs.figure(replace(KIND, batch=2))
    assert (together.mean_s, together.samples, together.cold_s) == (4.0, 1, 20.0)
    assert costs.figure(KIND).samples == 0


async def test_what_one_engine_has_learnt_another_begins_with() -> None:
    journal, costs = MemoryJournal(), learnt(1.0, 3.0)
    await calibration(journal, costs).save()
    other = CostModel()
    await calibration(journal, other).load()

    ours, theirs = costs.figure(KIND), other.figure(KIND)
    assert (theirs.mean_s, theirs.samples, theirs.cold_s) == (ours.mean_s, ours.samples, 9.0)
    assert theirs.careful_s == ours.careful_s


async def test_another_predicts_as_well_what_nobody_has_timed() -> None:
    journal, costs, unseen = MemoryJournal(), CostModel(), replace(KIND, shape="16x16x5")
    costs.figure(KIND, 10**12)
    for seconds in (9.0, *[0.01] * 30):
        costs.figure(KIND).took(seconds, "worker")
    await calibration(journal, costs).save()
    other = CostModel()
    await calibration(journal, other).load()

    assert other.figure(unseen, 4 * 10**12).expected_s == pytest.approx(0.04)
    assert costs.figure(unseen, 4 * 10**12).expected_s == pytest.approx(0.04)


async def test_the_work_of_a_step_is_added_to_what_an_older_release_has_written() -> None:
    class CostMeasured(Struct, tag="cost_measured"):
        kind: StepKind
        mean_s: float
        deviation_s: float
        samples: int

    journal = MemoryJournal()
    written = NewEvent("cost_measured", msgspec.msgpack.encode(CostMeasured(KIND, 2.0, 0.1, 9)))
    await journal.append(Append(stream=STREAM, expected=0, epoch=0, at=0.0, events=(written,)))
    costs = CostModel()
    keeping = calibration(journal, costs)
    await keeping.load()
    assert costs.figure(KIND, 10**12).mean_s == 2.0
    await keeping.save()
    other = CostModel()
    await calibration(journal, other).load()

    assert other.figure(replace(KIND, shape="16x16x5"), 10**12).expected_s == pytest.approx(2.0)


async def test_what_has_been_timed_here_is_not_forgotten_for_what_others_say() -> None:
    journal = MemoryJournal()
    await calibration(journal, learnt(1.0)).save()
    costs = learnt(5.0)
    await calibration(journal, costs).load()

    assert costs.figure(KIND).mean_s == 5.0


async def test_a_figure_is_written_again_only_when_it_has_changed_by_much() -> None:
    journal, costs = MemoryJournal(), learnt(*[1.0] * 50)
    keeping = calibration(journal, costs)
    for seconds, written in ((1.0, 1), (1.0, 1), (1.02, 1), (30.0, 2), (30.0, 3)):
        costs.figure(KIND).took(seconds, "worker")
        await keeping.save()
        assert await events(journal) == written


async def test_each_pool_has_a_stream_of_its_own() -> None:
    journal, costs = MemoryJournal(), learnt(1.0)
    for _ in range(2):
        costs.figure(replace(KIND, pool="gpus")).took(2.0, "other")
    await calibration(journal, costs).save()

    assert await journal.streams("pool/") == ["pool/default", "pool/gpus"]


async def test_two_engines_that_write_at_once_both_come_to_be_heard() -> None:
    journal = MemoryJournal()
    other = replace(KIND, shape="16x16x5")
    one, two = learnt(1.0), learnt(4.0, kind=other)
    first, second = calibration(journal, one), calibration(journal, two)
    await first.load()
    await second.load()
    await first.save()
    await second.save()  # is refused, and takes over what the first has written
    await second.save()
    costs = CostModel()
    await calibration(journal, costs).load()

    assert (costs.figure(KIND).mean_s, costs.figure(other).mean_s) == (1.0, 4.0)


@pytest.mark.parametrize("refuse", [1, 2])
async def test_a_store_that_takes_no_writes_stops_nothing(refuse: int) -> None:
    inner = MemoryJournal()
    journal = QueuedJournal(inner)
    journal.refuse = refuse
    keeping = Calibration(journal, learnt(1.0), SimClock(), lease=None)  # type: ignore[arg-type]
    for _ in range(refuse + 1):
        await keeping.save()

    assert await events(inner) == 1


async def test_a_store_that_cannot_be_read_stops_nothing() -> None:
    class Down(MemoryJournal):
        async def streams(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
            raise StoreUnavailable("the disk is gone")

    costs = CostModel()
    await calibration(Down(), costs).load()

    assert not list(costs.measured())


async def test_words_that_nobody_understands_are_left_alone() -> None:
    journal = MemoryJournal()
    await journal.append(Append(stream=STREAM, expected=0, epoch=0, at=0.0, events=(), checkpoint=b"\xff"))
    costs = CostModel()
    await calibration(journal, costs).load()

    assert not list(costs.measured())
