"""Replay with execution: a job's log is run again, and every step must make the bytes that the log says it made.

This is the parity test; nothing weaker is called one.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from cards.family import Family
from cards.loop import LoopState
from cards.wire import StepResult, UnitId, WorkPlan, WorkUnit
from engine import driver
from engine.actor import needs
from engine.contents import Contents
from engine.events import JobEvent, StepCompleted
from engine.job import Job, fold
from store.errors import CorruptBlob, MissingBlob

Execute = Callable[[WorkUnit], Awaitable[StepResult]]
"""Run a unit on a fresh device that keeps the job's tensors from one unit to the next."""


class Difference(Struct, frozen=True):
    """The first place where log and replay part. `what` is a tensor, artifact or scalar; `step` if the step failed."""

    node: str
    step: int
    what: str
    problem: str
    logged: str
    found: str


class Verdict(Struct, frozen=True):
    """`steps` were executed again. `pruned` counts tensors whose bytes are no longer stored: only re-execution
    checks those."""

    job: str
    steps: int
    tensors: int
    pruned: int
    difference: Difference | None

    @property
    def equal(self) -> bool:
        return self.difference is None


async def verify(
    history: Sequence[JobEvent],
    family: Family,
    execute: Execute,
    contents: Contents,
    progress: Callable[[str, int], None] = lambda node, step: None,
) -> Verdict:
    """Execute the log's steps again and compare every digest, and check the bytes that are stored under them.

    Stops at the first difference. Raises IllegalMove for a log that does not fold.
    """
    job: Job | None = None
    state: LoopState | None = None
    steps = tensors = pruned = 0
    for event in history:
        if isinstance(event, StepCompleted):
            assert job is not None, "a stream starts with JobSubmitted"
            turn = driver.resume(job, family, state)
            assert turn.state is not None and turn.plan is not None  # noqa: PT018
            progress(event.node, event.step)
            missing, damage = await _check_stored(event, contents)
            pruned += missing
            result = await execute(_unit(job, turn.state, turn.plan))
            difference = damage or _compare(event, result)
            if difference is not None:
                return Verdict(job.id, steps, tensors, pruned, difference)
            state = driver.fold_in(job, family, turn.state, event).state
            steps += 1
            tensors += len(event.tensors)
        job = fold(job, event)
    assert job is not None, "a stream starts with JobSubmitted"
    return Verdict(job.id, steps, tensors, pruned, None)


def _unit(job: Job, state: LoopState, plan: WorkPlan) -> WorkUnit:
    return WorkUnit(UnitId(job.id, 0, state.step, 0), plan, keep=needs(job, state))


async def _check_stored(event: StepCompleted, contents: Contents) -> tuple[int, Difference | None]:
    """How many of the step's tensors are no longer stored, and the first whose bytes are damaged."""
    missing = 0
    for name, digest in _digests(event).items():
        try:
            await contents.get(digest)
        except MissingBlob:
            if name in {ref.name for ref in event.artifacts}:
                problem = "the stored bytes are gone"
                return missing, Difference(event.node, event.step, name, problem, digest, "nothing")
            missing += 1
        except CorruptBlob:
            problem = "the stored bytes do not hash to the digest in the log"
            return missing, Difference(event.node, event.step, name, problem, digest, "damaged bytes")
    return missing, None


def _compare(event: StepCompleted, result: StepResult) -> Difference | None:
    if result.error is not None:
        return Difference(event.node, event.step, "step", "the step failed", "completed", result.error.message)
    logged, found = _made(event), _made(result)
    for name in [*logged, *(name for name in found if name not in logged)]:
        if found.get(name) != logged.get(name):
            problem = "re-execution made other bytes"
            return Difference(
                event.node, event.step, name, problem, logged.get(name, "nothing"), found.get(name, "nothing")
            )
    return None


def _made(made: StepCompleted | StepResult) -> Mapping[str, str]:
    return {**_digests(made), **{name: repr(value) for name, value in made.scalars.items()}}


def _digests(made: StepCompleted | StepResult) -> Mapping[str, str]:
    refs = {name: ref.digest for name, ref in made.tensors.items()}
    return refs | {ref.name: ref.digest for ref in made.artifacts}
