"""Jobs on one executor, without an engine: each by itself, or all of them in batches as they come."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from cards.family import Family
from cards.given import Given
from cards.request import GenerationRequest, resolve
from cards.wire import Batch, ModelIdentity, StepResult, UnitId, WorkPlan, WorkUnit
from engine import driver
from engine.events import JobAdmitted, JobSubmitted
from engine.job import fold
from engine.needs import tensors
from ops.blobs import WorkerBlobs
from store.blobs import MemoryBlobs
from workers.execute import Answer, Executor
from workers.loaded import Loaded
from workers.sharing import Sharing

Steps = dict[tuple[str, int], dict[str, str]]
"""What a job's steps left, tensors and artifacts, by digest."""


class Course:
    """A job on its way through the nodes of its program, `last` among them."""

    def __init__(
        self, name: str, family: Family, request: Mapping[str, Any], given: Mapping[str, Given], last: str
    ) -> None:
        asked = resolve(GenerationRequest(model=family.card.name, **request), family.card, Random(0))
        submitted = JobSubmitted(
            job=name,
            request=asked,
            model=ModelIdentity(family.card.name, "", ""),
            submitted_at=0.0,
            inputs={name: one.ref for name, one in given.items()},
        )
        self.steps: Steps = {}
        self.results: list[StepResult] = []
        self._family = family
        self._last = last
        self._job = fold(fold(None, submitted), JobAdmitted(engine="none"))
        self._turn = driver.resume(self._job, family, None)
        self._fold(self._turn)

    @property
    def plan(self) -> WorkPlan | None:
        """Of its next step."""
        names = [node.name for node in self._family.card.program.nodes]
        return self._turn.plan if self._job.place.index <= names.index(self._last) else None

    def unit(self) -> WorkUnit:
        assert self.plan is not None
        assert self._turn.state is not None
        version = len(self.results)
        keep = tuple(tensors(self._job, self._turn.state))
        return WorkUnit(UnitId(self._job.id, 1, version, 1, version), self.plan, keep=keep)

    def take(self, result: StepResult) -> None:
        assert result.error is None, result.error
        assert self.plan is not None
        assert self._turn.state is not None
        node = driver.node_of(self._job, self._family)
        self.results.append(result)
        tensors, artifacts = result.tensors.items(), ((ref.name, ref) for ref in result.artifacts)
        self.steps[node.name, self.plan.step] = {name: ref.digest for name, ref in (*tensors, *artifacts)}
        done = driver.completed(node, self.plan, result, "none")
        self._job = fold(self._job, done)
        self._turn = driver.fold_in(self._job, self._family, self._turn.state, done)
        self._fold(self._turn)

    def _fold(self, turn: driver.Turn) -> None:
        for event in turn.events:
            self._job = fold(self._job, event)


class Place:
    """An executor and the store that it shares with whoever sends it units."""

    def __init__(
        self, models: Mapping[str, Loaded], given: Sequence[Given] = (), sharing: Sharing | None = None
    ) -> None:
        self.blobs = WorkerBlobs(MemoryBlobs())
        self.executor = Executor(models, self.blobs)
        self.executor.sharing = sharing or self.executor.sharing
        self.blobs.put_named({one.ref.digest: one.data for one in given})

    def run(self, units: Sequence[WorkUnit]) -> list[StepResult]:
        return [self._kept(answer) for answer in self.executor.run_batch(Batch(tuple(units)), [])]

    def _kept(self, answer: Answer) -> StepResult:
        self.blobs.put_named(dict(zip(answer.result.inline, answer.frames, strict=True)))
        return answer.result


def turn(place: Place, courses: Sequence[Course]) -> None:
    """A step of each, in one batch."""
    for course, result in zip(courses, place.run([course.unit() for course in courses]), strict=True):
        course.take(result)


def one_by_one(place: Place, courses: Sequence[Course]) -> list[Steps]:
    for course in courses:
        while course.plan is not None:
            turn(place, [course])
    return [course.steps for course in courses]


def in_batches(place: Place, courses: Sequence[Course]) -> list[Steps]:
    """Another job comes each turn, and all that are there make a step, in whatever order."""
    chance, come = Random(0), 0
    while any(course.plan is not None for course in courses):
        come += 1
        there = [course for course in courses[:come] if course.plan is not None]
        chance.shuffle(there)
        groups: dict[Any, list[Course]] = {}
        for course in there:
            assert course.plan is not None
            groups.setdefault((course.plan.instance, course.plan.kind), []).append(course)
        for group in groups.values():
            turn(place, group)
    return [course.steps for course in courses]
