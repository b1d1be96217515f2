"""A job's states, moves and fold."""

import itertools
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cards.request import ResolvedRequest
from cards.wire import ArtifactRef, ModelIdentity, StepResult, TensorRef, UnitId
from engine import driver, verbs
from engine import events as facts
from engine.actor import replay
from engine.errors import IllegalMove, UnknownEvent
from engine.events import (
    CancelRequested,
    JobAdmitted,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobRecovered,
    JobReleased,
    JobSubmitted,
    NodeCompleted,
    NodeStarted,
    NoticeGiven,
    NumericsChanged,
    StepCompleted,
    WorkerLost,
)
from engine.job import NEXT, TERMINAL, Place, State, fold
from store.journal import Event
from tests import toy

REF = TensorRef("d", "float32", (1,), (1,), 4)

SAMPLES: dict[type[JobEvent], JobEvent] = {
    type(event): event
    for event in (
        NoticeGiven(code="c", field="prompt", message="m"),
        JobAdmitted(engine="e"),
        JobRecovered(engine="e", node="count", step=1),
        JobReleased(engine="e"),
        NodeStarted(node="count", loop="count", semantics="s/1", steps=3),
        StepCompleted(
            node="count", step=0, kind="count", tensors={"x": REF}, artifacts=(ArtifactRef("a", "d", "text/plain", 1),)
        ),
        NodeCompleted(node="count", outputs={"x": REF}),
        NumericsChanged(fingerprint="f"),
        WorkerLost(worker="w", reason="r", blamed=True),
        CancelRequested(reason="r"),
        JobCancelled(),
        JobCompleted(),
        JobFailed(kind="error", message="m", node="count", step=1, attempt=1),
    )
}


def submitted(steps: int = 3) -> JobSubmitted:
    request = ResolvedRequest(
        model="toy",
        prompt="p",
        negative_prompt="",
        seed=1,
        steps=steps,
        guidance=1.0,
        preview_every=0,
        priority=0,
        metadata={},
    )
    return JobSubmitted(job="j", request=request, model=ModelIdentity("toy", "c", "w"), submitted_at=1.0)


def test_the_samples_cover_every_event() -> None:
    assert {*SAMPLES, JobSubmitted} == set(get_args(JobEvent))


@pytest.mark.parametrize(
    ("state", "kind"), list(itertools.product(State, SAMPLES)), ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_state_takes_what_the_table_says_and_nothing_else(state: State, kind: type[JobEvent]) -> None:
    job = msgspec.structs.replace(fold(None, submitted()), state=state)

    if kind in NEXT[state]:
        assert fold(job, SAMPLES[kind]).state is NEXT[state][kind]
    else:
        with pytest.raises(IllegalMove, match=facts.tag(SAMPLES[kind])):
            fold(job, SAMPLES[kind])


def test_terminal_states_have_no_way_out() -> None:
    assert all(not NEXT[state] for state in TERMINAL)
    assert all(NEXT[state] for state in set(State) - TERMINAL)


def test_a_stream_starts_with_its_submission_and_has_one() -> None:
    with pytest.raises(IllegalMove, match="not submitted"):
        fold(None, JobAdmitted(engine="e"))
    with pytest.raises(IllegalMove, match="job_submitted"):
        fold(fold(None, submitted()), submitted())


def test_an_unknown_event_is_refused_by_name() -> None:
    with pytest.raises(UnknownEvent, match="'job_teleported'"):
        facts.decode(Event(1, "job/j", 1, 0, "job_teleported", 0.0, b"\x80"))


@pytest.mark.parametrize("event", [submitted(), *SAMPLES.values()], ids=facts.tag)
def test_an_event_survives_the_disk(event: JobEvent) -> None:
    new = facts.encode(event)

    assert facts.decode(Event(1, "job/j", 1, 0, new.type, 0.0, new.body)) == event


def test_outputs_are_inexact_once_the_numerics_change() -> None:
    history = [submitted(), JobAdmitted(engine="e"), NumericsChanged(fingerprint="a")]
    assert replay(history).exact

    assert replay([*history, NumericsChanged(fingerprint="a")]).exact
    assert not replay([*history, NumericsChanged(fingerprint="b")]).exact


VERBS = ("admit", "step", "recover", "release", "lose", "lose_blamed", "cancel", "cancel_running", "confirm", "fail")


class History:
    """Turns verbs into events as the engine would; those that make no sense now decide nothing."""

    def __init__(self, steps: int) -> None:
        self.events: list[JobEvent] = [submitted(steps)]
        self.job = fold(None, self.events[0])

    def try_verb(self, verb: str) -> list[JobEvent]:
        events = self._decide(verb)
        for event in events:
            self.job = fold(self.job, event)
        self.events += events
        return events

    def _decide(self, verb: str) -> list[JobEvent]:
        job = self.job
        match verb:
            case "admit" | "recover" if job.state in (State.QUEUED, State.RUNNING):
                return self._claim()
            case "release" if job.state is State.RUNNING:
                return [JobReleased(engine="e")]
            case "step" if job.state is State.RUNNING:
                return self._step()
            case "lose" | "lose_blamed" if job.state in (State.RUNNING, State.CANCELLING):
                node = driver.node_of(job, toy.FAMILY)
                return verbs.lose_worker(job, node, "w", "r", blamed=verb == "lose_blamed", max_deaths=3)
            case "cancel" | "cancel_running":
                return verbs.cancel(job, "r", running=verb == "cancel_running")
            case "confirm" if job.state is State.CANCELLING:
                return [JobCancelled()]
            case "fail" if not job.terminal:
                return verbs.fail(job, driver.node_of(job, toy.FAMILY), "error", "m")
        return []

    def _claim(self) -> list[JobEvent]:
        job, family = self.job, toy.FAMILY
        began: JobEvent = (
            JobRecovered(engine="e", node=driver.node_of(job, family).name, step=job.place.step)
            if job.admitted
            else JobAdmitted(engine="e")
        )
        return [began, *driver.resume(job, family, None).events]

    def _step(self) -> list[JobEvent]:
        job, family = self.job, toy.FAMILY
        turn = driver.resume(job, family, None)
        for _ in range(job.place.step):
            turn = driver.fold_in(job, family, turn.state, self._done(turn))
        done = self._done(turn)
        return [done, *driver.fold_in(job, family, turn.state, done).events]

    def _done(self, turn: driver.Turn) -> StepCompleted:
        made = {"start" if self.job.place.index == 0 else "x": REF}
        result = StepResult(UnitId("j", 1, 1, 1), made)
        return driver.completed(driver.node_of(self.job, toy.FAMILY), turn.plan, result, "w")


@given(st.integers(1, 3), st.lists(st.sampled_from(VERBS), max_size=40))
def test_no_history_loses_a_checkpoint_or_leaves_a_final_state(steps: int, wishes: list[str]) -> None:
    history = History(steps)

    for verb in wishes:
        before = history.job
        events = history.try_verb(verb)
        if before.terminal:
            assert events == []
        assert _order(history.job.place) >= _order(before.place)
        assert set(before.outputs) <= set(history.job.outputs)

    encoded = [facts.encode(event) for event in history.events]
    decoded = [facts.decode(Event(n, "job/j", n, 1, new.type, 0.0, new.body)) for n, new in enumerate(encoded, 1)]
    assert replay(decoded) == history.job
    for length in range(1, len(decoded)):
        assert not replay(decoded[:length]).terminal


@given(st.lists(st.sampled_from(VERBS), max_size=40))
def test_a_job_that_keeps_bringing_workers_down_is_failed_for_good(wishes: list[str]) -> None:
    history = History(3)
    history.try_verb("admit")

    for verb in [*wishes, "admit", *["lose_blamed"] * 3]:
        history.try_verb(verb)

    assert history.job.terminal


def _order(place: Place) -> tuple[int, int]:
    return place.index, place.step
