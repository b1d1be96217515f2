"""What a changed request means in the middle of a program, node by node, without an engine."""

from typing import Any

import pytest
from msgspec.structs import replace

from cards.card import LoopSpec, Node, Program
from cards.errors import InvalidRequest
from cards.loop import Done, LoopContext, LoopState, StepOutput
from cards.request import RequestChanges
from cards.wire import ModelIdentity, TensorRef, WorkPlan
from engine import course, driver, fork
from engine.events import JobAdmitted, JobEvent, JobSubmitted, StepCompleted
from engine.job import Job
from tests import toy
from tests.engine.events import REF, REQUEST

STEPS = 3
"""Of every node."""


class Counts:
    """A loop of three steps that depends on some fields of the request and hands on one tensor."""

    def __init__(self, name: str, fields: tuple[str, ...]) -> None:
        self.semantics = f"{name}/1"
        self._fields = fields

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        request = context.request
        return LoopState(
            loop=context.loop,
            semantics=self.semantics,
            step=0,
            steps=request.steps if "steps" in self._fields else STEPS,
            inputs=inputs,
            scalars={name: getattr(request, name) for name in self._fields if getattr(request, name)},
        )

    def next(self, state: LoopState) -> WorkPlan | Done:
        if state.step == state.steps:
            return Done()
        return WorkPlan(instance="toy", loop=state.loop, kind=state.loop, step=state.step)

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        remembered = {**state.scalars, "seen": state.step + 1}
        return replace(state, step=state.step + 1, tensors=output.tensors, scalars=remembered)

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return state.tensors


LOOPS = {
    "words": ("prompt",),
    "refine": (),
    "mood": ("negative_prompt",),
    "draw": ("guidance", "steps"),
    "colour": ("seed",),
}
NODES = (
    Node(name="words", loop="words", outputs=("out",)),
    Node(name="refine", loop="refine", inputs={"in": "words.out"}, outputs=("out",)),
    Node(name="mood", loop="mood", outputs=("out",)),
    Node(name="draw", loop="draw", inputs={"in": "refine.out"}, outputs=("out",)),
    Node(name="colour", loop="colour", inputs={"in": "draw.out", "mood": "mood.out"}),
)


class Family(toy.ToyFamily):
    def __init__(self) -> None:
        card = replace(
            toy.CARD,
            loops={name: LoopSpec(semantics=f"{name}/1") for name in LOOPS},
            recipe=replace(toy.CARD.recipe, assumes_loop={}),
            program=Program(nodes=NODES, artifacts=()),
        )
        super().__init__(card)
        self.loops: Any = {f"{name}/1": Counts(name, fields) for name, fields in LOOPS.items()}


FAMILY = Family()


def history(steps: int) -> list[JobEvent]:
    """A log of so many steps, each of which makes a tensor of its own."""
    events: list[JobEvent] = [
        JobSubmitted(job="j", request=REQUEST, model=ModelIdentity("toy", "c", "w"), submitted_at=1.0),
        JobAdmitted(engine="e"),
    ]
    events += driver.resume(course.follow(events, FAMILY).job, FAMILY, None).events
    for n in range(steps):
        events += step(course.follow(events, FAMILY), n)
    return events


def step(walked: course.Walked, n: int) -> list[JobEvent]:
    turn = driver.resume(walked.job, FAMILY, walked.state)
    assert turn.state is not None
    node = driver.node_of(walked.job, FAMILY).name
    tensors = {"out": replace(REF, digest=f"{n}")}
    done = StepCompleted(node=node, step=turn.state.step, kind=node, tensors=tensors)
    return [*turn.events, done, *driver.fold_in(walked.job, FAMILY, turn.state, done).events]


def route(at: int, **changes: Any) -> list[tuple[str, int]]:
    """The nodes that the job goes through, and the step that each goes on from."""
    changed = fork.change(course.stand(history(15), FAMILY, at), RequestChanges(**changes), FAMILY)
    assert changed is not None
    return [(NODES[stage.place.index].name, stage.place.step) for stage in changed.route]


@pytest.mark.parametrize(
    ("at", "changes", "goes"),
    [
        (0, {"prompt": "q"}, [("words", 0)]),
        (2, {"prompt": "q"}, [("words", 2)]),
        (3, {"prompt": "q"}, [("words", 0), ("refine", 0)]),
        (4, {"prompt": "q"}, [("words", 0), ("refine", 1)]),
        (7, {"prompt": "q"}, [("words", 0), ("refine", 0), ("mood", 1)]),
        (10, {"prompt": "q"}, [("words", 0), ("refine", 0), ("draw", 1)]),
        (13, {"prompt": "q"}, [("words", 0), ("refine", 0), ("draw", 0), ("colour", 1)]),
        (10, {"negative_prompt": "q"}, [("mood", 0), ("draw", 1)]),
        (10, {"guidance": 2.0}, [("draw", 1)]),
        (13, {"guidance": 2.0}, [("draw", 0), ("colour", 1)]),
        (13, {"seed": 2}, [("colour", 1)]),
        (13, {"priority": 2}, [("colour", 1)]),
        (8, {"steps": 5}, [("mood", 2)]),
        (9, {"steps": 5}, [("draw", 0)]),
    ],
    ids=str,
)
def test_the_nodes_whose_beginning_changes_run_again_with_those_that_read_them(
    at: int, changes: dict[str, Any], goes: list[tuple[str, int]]
) -> None:
    assert route(at, **changes) == goes


def test_a_node_that_nobody_reads_any_more_is_not_run_again() -> None:
    class Unread(Family):
        def __init__(self) -> None:
            super().__init__()
            nodes = (*NODES[:4], replace(NODES[4], inputs={"in": "draw.out"}))
            self.card = replace(self.card, program=Program(nodes=nodes, artifacts=()))

    family = Unread()
    changed = fork.change(course.stand(history(10), family, 10), RequestChanges(negative_prompt="q"), family)

    assert changed is not None
    assert [stage.place.index for stage in changed.route] == [3]


def test_the_node_that_goes_on_keeps_its_tensors_and_what_it_remembers_and_takes_the_new_scalars() -> None:
    walked = course.stand(history(11), FAMILY, 11)
    changed = fork.change(walked, RequestChanges(guidance=2.0), FAMILY)

    assert walked.state is not None
    assert changed is not None
    [stage] = changed.route
    assert stage.state == replace(walked.state, scalars=walked.state.scalars | {"guidance": 2.0})
    assert stage.state.scalars["seen"] == 2


def test_a_scalar_that_the_new_request_does_not_begin_with_is_gone() -> None:
    changed = fork.change(course.stand(history(11), FAMILY, 11), RequestChanges(guidance=0.0), FAMILY)

    assert changed is not None
    assert changed.route[0].state is not None
    assert set(changed.route[0].state.scalars) == {"steps", "seen"}


def test_a_node_that_waited_reads_what_the_earlier_ones_have_made_now() -> None:
    events = history(10)
    changed = fork.change(course.follow(events, FAMILY), RequestChanges(prompt="q"), FAMILY)
    assert changed is not None
    events.append(changed)
    for n in range(10, 16):
        events += step(course.follow(events, FAMILY), n)
    walked = course.follow(events, FAMILY)

    assert walked.state is not None
    assert (walked.state.loop, walked.state.step, walked.job.route) == ("draw", 1, ())
    assert walked.state.tensors["out"].digest == "9", "what it had counted"
    assert walked.state.inputs["in"].digest == "15", "what was refined anew"


def test_a_second_change_while_nodes_run_again_adds_to_them() -> None:
    events = history(10)
    for changes, more in ((RequestChanges(prompt="q"), 1), (RequestChanges(negative_prompt="q", guidance=2.0), 0)):
        changed = fork.change(course.follow(events, FAMILY), changes, FAMILY)
        assert changed is not None
        events.append(changed)
        for n in range(more):
            events += step(course.follow(events, FAMILY), 10 + n)

    assert [(stage.place.index, stage.place.step) for stage in changed.route] == [(0, 1), (1, 0), (2, 0), (3, 1)]
    last = changed.route[-1].state
    assert last is not None
    assert last.scalars["guidance"] == 2.0


@pytest.mark.parametrize("at", [10, 12, 14])
def test_a_schedule_that_has_begun_is_not_made_longer(at: int) -> None:
    with pytest.raises(InvalidRequest, match="steps: draw has begun with 3; fork before its first step") as refused:
        route(at, steps=5)
    assert refused.value.field == "steps"


def test_nothing_is_left_to_change_at_the_end() -> None:
    with pytest.raises(InvalidRequest, match="guidance: all steps are done there"):
        route(15, guidance=2.0)


def test_a_change_to_what_it_is_already_is_none() -> None:
    walked = course.stand(history(4), FAMILY, 4)

    assert fork.change(walked, RequestChanges(guidance=REQUEST.guidance), FAMILY) is None


def test_the_job_after_each_step_is_the_same_from_any_log_that_shares_it() -> None:
    whole = history(15)

    def seen(walked: course.Walked) -> tuple[Job, LoopState | None]:
        return replace(walked.job, owner=None), walked.state

    for steps in range(16):
        assert seen(course.stand(whole, FAMILY, steps)) == seen(course.stand(history(steps), FAMILY, steps))
