"""Replay with execution: a job's log is run again, and every step must make the bytes that the log says it made.

This is the parity test; nothing weaker is called one.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import zip_longest

from msgspec import Struct

from cards.family import Family
from cards.folding import lacking
from cards.wire import StepResult, UnitId, WorkUnit
from engine import course, driver
from engine.contents import Contents
from engine.course import Walked
from engine.events import JobEvent, JobRewound, Stage, StepCompleted
from engine.needs import tensors
from store.errors import CorruptBlob, MissingBlob

Execute = Callable[[WorkUnit, list[bytes]], Awaitable[StepResult]]
"""Run a unit, whose inline tensors follow, on a fresh device that keeps the job's tensors from one unit to the next."""


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
    *,
    from_step: int = 0,
) -> Verdict:
    """Execute the log's steps again and compare every digest, and check the bytes that are stored under them.

    The first `from_step` steps are taken as the log has them, and the next is given what they have stored. Stops at the
    first difference. Raises IllegalMove for a log that does not fold, LoopFailed.
    """
    device = _Device(execute, contents, keep=_rewound_to(history))
    walked: Walked | None = None
    seen = steps = tensors = pruned = 0
    for event in history:
        if isinstance(event, StepCompleted) and (seen := seen + 1) > from_step:
            assert walked is not None, "a stream starts with JobSubmitted"
            progress(event.node, event.step)
            missing, damage = await _check_stored(event, contents)
            pruned += missing
            difference = damage or await device.run(walked, family, event)
            if difference is not None:
                return Verdict(walked.job.id, steps, tensors, pruned, difference)
            steps += 1
            tensors += len(event.tensors)
        walked = course.after(walked, family, event)
    assert walked is not None, "a stream starts with JobSubmitted"
    return Verdict(walked.job.id, steps, tensors, pruned, None)


def diff(ours: Sequence[JobEvent], theirs: Sequence[JobEvent]) -> Difference | None:
    """The first step at which two logs part, as they now stand: `logged` is what the first has, `found` the second."""
    for one, other in zip_longest(course.steps(course.course(ours)), course.steps(course.course(theirs))):
        if one is None or other is None or (one.node, one.step) != (other.node, other.step):
            at = one or other
            return Difference(at.node, at.step, "step", "the logs go on otherwise", _place(one), _place(other))
        if difference := _compare(one, other, "the logs have other bytes"):
            return difference
    return None


def _place(step: StepCompleted | None) -> str:
    return f"{step.node} step {step.step}" if step is not None else "nothing"


def _rewound_to(history: Sequence[JobEvent]) -> frozenset[str]:
    """The tensors that the log goes back to at some time: none of them may be forgotten before."""
    rewound = [event.standing for event in history if isinstance(event, JobRewound)]
    states = [stage.state for then in rewound for stage in (Stage(then.place, then.state), *then.route) if stage.state]
    refs = [ref for state in states for ref in (*state.tensors.values(), *state.inputs.values())]
    return frozenset(ref.digest for ref in (*refs, *(ref for then in rewound for ref in then.outputs.values())))


class _Device:
    """What a device holds of a job: it is given what it lacks, from what is stored."""

    def __init__(self, execute: Execute, contents: Contents, keep: frozenset[str]) -> None:
        self._execute = execute
        self._contents = contents
        self._keep = keep
        self._held: frozenset[str] = frozenset()

    async def run(self, walked: Walked, family: Family, event: StepCompleted) -> Difference | None:
        """Execute the step again. The difference between what it makes and what the log says it made."""
        turn = driver.resume(walked.job, family, walked.state)
        assert turn.state is not None and turn.plan is not None  # noqa: PT018
        wanted = tensors(walked.job, turn.state)
        kept = self._keep.union(wanted)
        lacks = lacking(wanted, walked.refolds, self._held & kept)
        inline = sorted(lacks.stored)
        try:
            frames = [await self._contents.get(digest) for digest in inline]
        except (MissingBlob, CorruptBlob) as error:
            return Difference(event.node, event.step, "state", "cannot be started from", str(error), "nothing")
        unit = WorkUnit(
            UnitId(walked.job.id, 0, turn.state.step, 0),
            turn.plan,
            inline=tuple(inline),
            keep=tuple(kept),
            refolds=lacks.refolds,
        )
        result = await self._execute(unit, frames)
        self._held = (self._held & kept).union(wanted, (ref.digest for ref in result.tensors.values()))
        if result.error is not None:
            return Difference(event.node, event.step, "step", "the step failed", "completed", result.error.message)
        return _compare(event, result, "re-execution made other bytes")


async def _check_stored(event: StepCompleted, contents: Contents) -> tuple[int, Difference | None]:
    """How many of the step's tensors are no longer stored, and the first whose bytes are damaged."""
    missing = 0
    for name, digest in _digests(event).items():
        if name in event.derived:
            continue
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


def _compare(event: StepCompleted, made: StepCompleted | StepResult, problem: str) -> Difference | None:
    logged, found = _made(event), _made(made)
    for name in [*logged, *(name for name in found if name not in logged)]:
        if found.get(name) != logged.get(name):
            return Difference(
                event.node, event.step, name, problem, logged.get(name, "nothing"), found.get(name, "nothing")
            )
    return None


def _made(made: StepCompleted | StepResult) -> Mapping[str, str]:
    return {**_digests(made), **{name: repr(value) for name, value in made.scalars.items()}}


def _digests(made: StepCompleted | StepResult) -> Mapping[str, str]:
    refs = {name: ref.digest for name, ref in made.tensors.items()}
    return refs | {ref.name: ref.digest for ref in made.artifacts}
