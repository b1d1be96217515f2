"""A job's states, moves and fold."""

import itertools
from typing import get_args

import msgspec
import pytest

from engine import events as facts
from engine import verbs
from engine.actor import replay
from engine.errors import IllegalMove, UnknownEvent
from engine.events import (
    CancelRequested,
    JobAdmitted,
    JobEvent,
    JobMigrated,
    JobPaused,
    JobQuarantined,
    JobResumed,
    JobRetried,
    JobRewound,
    JobSubmitted,
    JobTerminated,
    NodeCompleted,
    NodeStarted,
    NumericsChanged,
    QuarantineLifted,
    RequestChanged,
    Stage,
    StepPinned,
    StepUnpinned,
)
from engine.job import NEXT, OPEN, TERMINAL, Place, State, fold
from store.journal import Event
from tests.engine.events import REF, REQUEST, SAMPLES, submitted


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


def test_a_node_that_runs_again_leaves_nothing_of_what_it_made_before() -> None:
    started = NodeStarted(node="n", loop="count", semantics="s/1", steps=1)
    begun = [submitted(), JobAdmitted(engine="e"), started]
    first = NodeCompleted(node="n", outputs={"frames/0": REF, "frames/1": REF})
    again = RequestChanged(request=REQUEST, route=(Stage(Place(index=0)),))
    second = NodeCompleted(node="n", outputs={"frames/0": REF})

    assert set(replay([*begun, first, again, started, second]).outputs) == {"n.frames/0"}


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
