"""A job's states, moves and fold."""

import itertools
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cards.errors import InvalidRequest
from cards.loop import LoopState
from cards.request import RequestChanges, ResolvedRequest
from cards.wire import ArtifactRef, ModelIdentity, StepResult, TensorRef, UnitId
from engine import course, driver, fork, verbs
from engine import events as facts
from engine.actor import replay
from engine.errors import IllegalMove, NotAllowed, UnknownEvent
from engine.events import (
    CancelRequested,
    JobAdmitted,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobForked,
    JobImported,
    JobMigrated,
    JobMovedAway,
    JobPaused,
    JobQuarantined,
    JobRecovered,
    JobReleased,
    JobResumed,
    JobRetried,
    JobRewound,
    JobSubmitted,
    JobTerminated,
    NodeCompleted,
    NodeStarted,
    NoticeGiven,
    NumericsChanged,
    QuarantineLifted,
    RequestChanged,
    Stage,
    Standing,
    StepCompleted,
    StepPinned,
    StepUnpinned,
    WorkerLost,
)
from engine.job import NEXT, OPEN, TERMINAL, Place, State, fold
from store.journal import Event
from tests import toy

REF = TensorRef("d", "float32", (1,), (1,), 4)

REQUEST = ResolvedRequest(
    model="toy",
    prompt="p",
    negative_prompt="",
    seed=1,
    steps=3,
    guidance=1.0,
    preview_every=0,
    priority=0,
    metadata={},
)
STATE = LoopState(loop="count", semantics="toy.count/1", step=1, steps=3, tensors={"x": REF}, scalars={"seed": 1})

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
        JobPaused(reason="r"),
        JobResumed(),
        JobQuarantined(reason="r"),
        QuarantineLifted(),
        JobRetried(reason="r"),
        JobTerminated(reason="r"),
        JobForked(parent="p", at_step=2, changes=RequestChanges(guidance=2.0)),
        RequestChanged(
            request=REQUEST,
            route=(Stage(Place(index=0)), Stage(Place(index=1, step=1, steps=3, started=True), STATE)),
        ),
        JobRewound(
            to_step=2,
            standing=Standing(
                place=Place(index=1, step=1, steps=3, started=True),
                route=(),
                state=STATE,
                request=REQUEST,
                notices=(),
                outputs={"prepare.start": REF},
                artifacts={},
                fingerprint="f",
                exact=True,
            ),
        ),
        StepPinned(step=1),
        StepUnpinned(step=1),
        JobMigrated(pool="p"),
        JobImported(origin="o"),
        JobMovedAway(to="t"),
    )
}


def submitted(steps: int = 3) -> JobSubmitted:
    request = msgspec.structs.replace(REQUEST, steps=steps)
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


def test_what_has_ended_well_or_elsewhere_has_no_way_out_and_the_rest_only_by_somebodys_verb() -> None:
    ways = {state: {event for event, after in NEXT[state].items() if after is not state} for state in TERMINAL}

    assert not ways[State.COMPLETED]
    assert not NEXT[State.MOVED]
    assert ways[State.FAILED] == {JobRetried, JobRewound, JobQuarantined}
    assert ways[State.CANCELLED] == {JobRetried, JobRewound}
    assert all(NEXT[state] for state in set(State) - TERMINAL)
    assert not OPEN & TERMINAL


def test_a_job_may_change_after_its_end_in_its_pins_alone() -> None:
    for state in TERMINAL:
        stays = {event for event, after in NEXT[state].items() if after is state}
        assert stays == (set() if state is State.MOVED else {StepPinned, StepUnpinned})


def test_pins_are_a_set_and_a_rewind_takes_those_behind_it() -> None:
    job = msgspec.structs.replace(fold(None, submitted()), state=State.FAILED)
    for step in (3, 1, 2, 3):
        job = fold(job, StepPinned(step=step))
    assert job.pins == (1, 2, 3)
    assert verbs.pin(job, 2, "", driven=True) == verbs.unpin(job, 4, driven=True) == []

    job = fold(fold(job, StepUnpinned(step=1)), SAMPLES[JobRewound])

    assert job.pins == (2,)


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


MACHINES = ("admit", "step", "recover", "release", "lose", "lose_blamed", "confirm", "fail")
PEOPLE = ("cancel", "cancel_running", "pause", "resume", "retry", "terminate", "quarantine", "lift", "rewind", "change")


def test_a_node_that_runs_again_leaves_nothing_of_what_it_made_before() -> None:
    started = NodeStarted(node="n", loop="count", semantics="s/1", steps=1)
    begun = [submitted(), JobAdmitted(engine="e"), started]
    first = NodeCompleted(node="n", outputs={"frames/0": REF, "frames/1": REF})
    again = RequestChanged(request=REQUEST, route=(Stage(Place(index=0)),))
    second = NodeCompleted(node="n", outputs={"frames/0": REF})

    assert set(replay([*begun, first, again, started, second]).outputs) == {"n.frames/0"}


VERBS = (*MACHINES, "step", "step", *PEOPLE, "send", "move")


class History:
    """Turns verbs into events as the engine would; those that make no sense now decide nothing."""

    def __init__(self, steps: int) -> None:
        self.events: list[JobEvent] = [submitted(steps)]
        self.job = fold(None, self.events[0])
        self.state: LoopState | None = None

    def try_verb(self, verb: str) -> list[JobEvent]:
        try:
            events = self._decide(verb) if verb in MACHINES else self._wish(verb)
        except (NotAllowed, InvalidRequest):
            return []
        for event in events:
            walked = course.after(course.Walked(self.job, self.state), toy.FAMILY, event)
            self.job, self.state = walked.job, walked.state
        self.events += events
        return events

    def _decide(self, verb: str) -> list[JobEvent]:
        job = self.job
        match verb:
            case "admit" | "recover" if job.state in (State.QUEUED, State.RUNNING):
                return self._claim()
            case "release" if job.state is State.RUNNING:
                return [JobReleased(engine="e")]
            case "step" if job.state in (State.RUNNING, State.PAUSED):
                return self._step()
            case "lose" | "lose_blamed" if job.state in (State.RUNNING, State.PAUSED, State.CANCELLING):
                node = driver.node_of(job, toy.FAMILY)
                return verbs.lose_worker(job, node, "w", "r", blamed=verb == "lose_blamed", max_deaths=3)
            case "confirm" if job.state is State.CANCELLING:
                return [JobCancelled()]
            case "fail" if not job.terminal:
                return verbs.fail(job, driver.node_of(job, toy.FAMILY), "error", "m")
        return []

    def _wish(self, verb: str) -> list[JobEvent]:
        job = self.job
        match verb:
            case "cancel" | "cancel_running":
                return verbs.cancel(job, "r", running=verb == "cancel_running")
            case "resume":
                return verbs.resume(job)
            case "lift":
                return verbs.lift(job)
            case "rewind":
                to_step = len(self.done()) // 2
                return verbs.rewind(job, to_step, self.after(to_step).standing, "r")
            case "change" if job.state is State.RUNNING:
                changes = RequestChanges(guidance=job.request.guidance + 1, prompt=f"start={len(self.events)}")
                changed = fork.change(course.Walked(job, self.state), changes, toy.FAMILY)
                return [] if changed is None or job.request.guidance > 8 else [changed]
            case "send":
                return verbs.migrate(job, f"pool-{len(self.events)}", None, "r", driven=True)
            case "move" if JobMovedAway in NEXT[job.state] and len(self.events) > 20:
                return [JobMovedAway(to="elsewhere")]
            case "pause" | "retry" | "terminate" | "quarantine":
                decide = getattr(verbs, verb)
                decided: list[JobEvent] = decide(job, "r")
                return decided
        return []

    def done(self) -> list[StepCompleted]:
        """The steps that count."""
        return course.steps(course.course(self.events))

    def after(self, step: int) -> course.Walked:
        return course.stand(self.events, toy.FAMILY, step)

    def _claim(self) -> list[JobEvent]:
        taken = verbs.take(self.job, driver.node_of(self.job, toy.FAMILY), "e")
        return [taken, *driver.resume(self.job, toy.FAMILY, self.state).events]

    def _step(self) -> list[JobEvent]:
        """Every step makes tensors of its own."""
        turn = driver.resume(self.job, toy.FAMILY, self.state)
        assert turn.state is not None
        assert turn.plan is not None
        made = {
            "start" if turn.state.loop == "prepare" else "x": msgspec.structs.replace(REF, digest=str(len(self.events)))
        }
        result = StepResult(UnitId("j", 1, 1, 1), made if turn.state.loop != "finish" else {})
        done = driver.completed(driver.node_of(self.job, toy.FAMILY), turn.plan, result, "w")
        return [done, *driver.fold_in(self.job, toy.FAMILY, turn.state, done).events]


@settings(max_examples=300)
@given(st.integers(1, 3), st.lists(st.sampled_from(VERBS), max_size=60))
def test_no_history_loses_a_step_but_by_a_rewind_or_leaves_a_final_state(steps: int, wishes: list[str]) -> None:
    history = History(steps)

    for verb in wishes:
        before, done = history.job, history.done()
        events = history.try_verb(verb)
        if before.state in (State.COMPLETED, State.MOVED):
            assert events == []
        if verb == "rewind" and events:
            assert history.done() == done[: len(done) // 2]
        else:
            assert history.done()[: len(done)] == done

    decoded = on_disk(history.events)
    assert replay(decoded) == history.job
    for length in range(1, len(decoded)):
        assert replay(decoded[:length]).state not in (State.COMPLETED, State.MOVED)


@settings(max_examples=200)
@given(st.integers(1, 3), st.lists(st.sampled_from(VERBS), max_size=60))
def test_the_course_of_any_history_leads_to_where_the_job_is(steps: int, wishes: list[str]) -> None:
    history = History(steps)
    for verb in wishes:
        history.try_verb(verb)

    last = history.after(len(history.done()))

    assert {**last.job.outputs} == {**history.job.outputs}
    assert (last.job.request, last.job.artifacts) == (history.job.request, history.job.artifacts)
    assert [stage.place.index for stage in last.job.route] == [stage.place.index for stage in history.job.route]
    assert (last.job.place.index, last.job.place.step) == (history.job.place.index, history.job.place.step)
    if history.state is not None and last.state is not None:
        assert last.state == history.state
    for n, walked in enumerate(course.walk(history.events, toy.FAMILY)):
        again = history.after(n)
        assert (walked.state, walked.job.place, walked.job.outputs) == (again.state, again.job.place, again.job.outputs)


def on_disk(events: list[JobEvent]) -> list[JobEvent]:
    encoded = [facts.encode(event) for event in events]
    return [facts.decode(Event(n, "job/j", n, 1, new.type, 0.0, new.body)) for n, new in enumerate(encoded, 1)]


@given(st.lists(st.sampled_from((*MACHINES, "cancel", "pause", "resume")), max_size=40))
def test_a_job_that_keeps_bringing_workers_down_is_failed_for_good(wishes: list[str]) -> None:
    history = History(3)
    history.try_verb("admit")

    for verb in [*wishes, "resume", "admit", *["lose_blamed"] * 3]:
        history.try_verb(verb)

    assert history.job.terminal


def test_a_retry_gives_a_poisoned_job_all_its_chances_again() -> None:
    history = History(3)
    for verb in ["admit", *["lose_blamed"] * 3]:
        history.try_verb(verb)
    assert history.job.failure is not None
    assert history.job.failure.kind == "poisoned"

    for verb in ["retry", "admit", *["lose_blamed"] * 2]:
        history.try_verb(verb)

    assert (history.job.state, history.job.failure, history.job.deaths) == (State.RUNNING, None, 2)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", sorted(verbs.ALLOWED))
def test_a_verb_is_possible_where_the_table_of_moves_has_its_event(verb: str, state: State) -> None:
    events = {
        "pause": JobPaused,
        "resume": JobResumed,
        "retry": JobRetried,
        "cancel": CancelRequested,
        "terminate": JobTerminated,
        "quarantine": JobQuarantined,
        "release": QuarantineLifted,
        "migrate": JobMigrated,
        "pin": StepPinned,
        "unpin": StepUnpinned,
    }
    if verb in events:
        assert (state in verbs.ALLOWED[verb]) == (events[verb] in NEXT[state])
    elif verb == "rewind":
        assert (state in verbs.ALLOWED[verb]) == (JobRewound in NEXT[state] or state is State.CANCELLING)


def test_a_verb_that_is_not_possible_says_what_is() -> None:
    history = History(3)
    for verb in ("admit", "fail"):
        history.try_verb(verb)

    with pytest.raises(
        NotAllowed, match="job j is failed: pause is not possible; possible: retry, quarantine, rewind, fork"
    ):
        verbs.pause(history.job, "")
