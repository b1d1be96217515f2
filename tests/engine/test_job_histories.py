"""Whatever is done to a job in whatever order: no step is lost, and its log leads to where it is."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cards.errors import InvalidRequest
from cards.loop import LoopState
from cards.request import RequestChanges
from cards.wire import StepResult, UnitId
from engine import course, driver, fork, verbs
from engine import events as facts
from engine.actor import replay
from engine.errors import NotAllowed
from engine.events import JobCancelled, JobEvent, JobMovedAway, JobReleased, StepCompleted
from engine.job import NEXT, State, fold
from store.journal import Event
from tests import toy
from tests.engine.events import REF, submitted

MACHINES = ("admit", "step", "recover", "release", "lose", "lose_blamed", "confirm", "fail")
PEOPLE = ("cancel", "cancel_running", "pause", "resume", "retry", "terminate", "quarantine", "lift", "rewind", "change")
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


@pytest.mark.parametrize("again", [["retry"], ["quarantine", "lift"], ["rewind"]])
def test_a_person_gives_a_poisoned_job_all_its_chances_again(again: list[str]) -> None:
    history = History(3)
    for verb in ["admit", *["lose_blamed"] * 3]:
        history.try_verb(verb)
    assert history.job.failure is not None
    assert history.job.failure.kind == "poisoned"

    for verb in [*again, "admit", *["lose_blamed"] * 2]:
        history.try_verb(verb)

    assert (history.job.state, history.job.failure) == (State.RUNNING, None)
    assert (history.job.deaths, history.job.deaths_in_all) == (2, 2)


def test_a_verb_that_is_not_possible_says_what_is() -> None:
    history = History(3)
    for verb in ("admit", "fail"):
        history.try_verb(verb)

    with pytest.raises(
        NotAllowed, match="job j is failed: pause is not possible; possible: retry, quarantine, rewind, fork"
    ):
        verbs.pause(history.job, "")
