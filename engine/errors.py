"""
EngineError
 - JobNotFound         no such job
 - ArtifactNotFound    the job has no artifact of that name (yet)
 - ArtifactLost        its bytes are gone or damaged on disk
 - KeyReused           an idempotency key came back with another request
 - NotAllowed          a verb that the job's state does not allow
 - GoneOn              a job that is not any more where it was exported
 - NoSuchStep          a step that the job has not completed
 - TensorsGone         the tensors that a step left are no longer stored
 - Unrunnable          this engine has not the card or the weights that the job pins
 - NoSuchPlace         nowhere to move a job to
 - WorkerNotFound      no such worker
 - NoSuchComponent     no such component of a model that a worker has
 - BadBundle           a file that is no sound bundle of a job
 - JobExists           a job that is to be taken in is here already
 - CannotCollect       a log that cannot be read: what it names is not known, so nothing is taken
 - BlobsShared         other stores' logs name bytes that a sweep for this one would take
 - BlobsHeld           somebody reads what a sweep might take, for a while
 - Draining            the engine is stopping and takes no new work
 - StoreTrouble        the store takes no writes now; nothing was acknowledged
    - Overtaken        somebody else wrote to the job's log first
       - DrivenElsewhere  the job is another engine's, which is alive
    - NoAnswer         the engine that drives the job does not do what it is asked for
 - LoopFailed          a family's loop raised: its job ends, nothing else does
 - HistoryError        a log that cannot be read
    - UnknownEvent     an event tag that this code does not know
    - IllegalMove      an event that the job's state does not allow
    - UnreadableBody   the body of an event or a checkpoint is not what its type says
    - AlteredLog       its chain is broken: it is not what was written
"""

from collections.abc import Iterable, Sequence


class EngineError(Exception):
    """Root of what the engine raises."""


class JobNotFound(EngineError):
    def __init__(self, job: str) -> None:
        super().__init__(f"no job {job!r}")
        self.job = job


class ArtifactNotFound(EngineError):
    def __init__(self, job: str, name: str, available: tuple[str, ...]) -> None:
        there = ", ".join(available) or "none yet"
        super().__init__(f"job {job} has no artifact {name!r}; it has: {there}")
        self.job = job
        self.name = name


class ArtifactLost(EngineError):
    def __init__(self, job: str, name: str, problem: str) -> None:
        super().__init__(f"artifact {name!r} of job {job} is lost: {problem}")
        self.job = job
        self.name = name


class KeyReused(EngineError):
    def __init__(self, key: str, job: str) -> None:
        super().__init__(f"Idempotency-Key {key!r} was used for job {job} with another body; use a new key")
        self.key = key
        self.job = job


class NotAllowed(EngineError):
    """`possible` are the verbs that the state does allow."""

    def __init__(self, job: str, verb: str, state: str, possible: Iterable[str]) -> None:
        there = ", ".join(possible) or "nothing"
        super().__init__(f"job {job} is {state}: {verb} is not possible; possible: {there}")
        self.job = job
        self.verb = verb
        self.state = state


class NoSuchStep(EngineError):
    def __init__(self, job: str, field: str, step: int, there: int) -> None:
        super().__init__(f"{field}: {step} is no step of job {job}, which has completed {there}: give 0 to {there}")
        self.field = field


class TensorsGone(EngineError):
    """`nearest` are the steps around it whose tensors are there."""

    def __init__(self, job: str, step: int, nearest: Sequence[int]) -> None:
        there = " and ".join(map(str, nearest))
        super().__init__(f"the tensors after step {step} of job {job} are no longer stored; the nearest are of {there}")
        self.nearest = tuple(nearest)


class Unrunnable(EngineError):
    def __init__(self, job: str, problem: str) -> None:
        super().__init__(f"job {job} cannot go on here: {problem}")


class NoSuchPlace(EngineError):
    """The message says what there is."""

    field = "to"


class WorkerNotFound(EngineError):
    def __init__(self, worker: str, there: Iterable[str]) -> None:
        super().__init__(f"no worker {worker!r}; there are: {', '.join(there) or 'none'}")


class NoSuchComponent(EngineError):
    """`field` is what was asked for and is not there."""

    def __init__(self, field: str, name: str, there: Iterable[str]) -> None:
        super().__init__(f"this worker has no {name!r}; there are: {', '.join(there) or 'none'}")
        self.field = field


class GoneOn(EngineError):
    def __init__(self, job: str, version: int) -> None:
        super().__init__(f"job {job} has gone on since its event {version} was exported; export it again")
        self.job = job


class BadBundle(EngineError):
    def __init__(self, file: str, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file = file


class JobExists(EngineError):
    def __init__(self, job: str) -> None:
        super().__init__(f"job {job} is in this store already; purge it first, or leave it be")
        self.job = job


class CannotCollect(EngineError):
    def __init__(self, job: str, problem: str) -> None:
        super().__init__(f"nothing was collected, since it is not known what job {job} needs: {problem}")
        self.job = job


class BlobsShared(EngineError):
    def __init__(self, others: Iterable[str]) -> None:
        there = ", ".join(sorted(others))
        super().__init__(
            f"nothing was collected: other stores have bytes here too ({there}), and what those name is not known. "
            "Give each store blobs of its own; if those are gone for good, run `engine-admin gc run --take-over`"
        )


class BlobsHeld(EngineError):
    def __init__(self, for_s: float) -> None:
        super().__init__(
            f"no blobs were swept: a backup reads them. Ask again when it is done; if it was killed, in {for_s:.0f} s"
        )


class Draining(EngineError):
    def __init__(self) -> None:
        super().__init__("the engine is stopping; ask again in a moment")


class StoreTrouble(EngineError):
    """The message is the store's own."""


class Overtaken(StoreTrouble):
    """Nothing was acknowledged; what was asked for may be asked for again."""


class DrivenElsewhere(Overtaken):
    """It is for `engine` to write to the job's log."""

    def __init__(self, job: str, engine: str) -> None:
        super().__init__(f"job {job} is driven by engine {engine}")
        self.engine = engine


class NoAnswer(StoreTrouble):
    def __init__(self, engine: str) -> None:
        super().__init__(f"engine {engine} drives the job and does not answer; nothing was done, ask again")


class LoopFailed(EngineError):
    """The message names the loop and says what it raised."""


class HistoryError(EngineError):
    """A log that cannot be read."""


class UnknownEvent(HistoryError):
    def __init__(self, tag: str) -> None:
        super().__init__(f"unknown event {tag!r}: the log was written by a newer engine")
        self.tag = tag


class IllegalMove(HistoryError):
    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"a job that is {state} cannot have {event!r}")
        self.state = state
        self.event = event


class UnreadableBody(HistoryError):
    def __init__(self, what: str, problem: str) -> None:
        super().__init__(f"the body of {what} cannot be read: {problem}")
        self.what = what


class AlteredLog(HistoryError):
    def __init__(self, job: str, problem: str) -> None:
        super().__init__(f"the log of job {job} is not sound: {problem}; from there on it is not to be trusted")
        self.job = job
        self.problem = problem
