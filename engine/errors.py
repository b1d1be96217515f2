"""
EngineError
 - JobNotFound         no such job
 - ArtifactNotFound    the job has no artifact of that name (yet)
 - ArtifactLost        its bytes are gone or damaged on disk
 - KeyReused           an idempotency key came back with another request
 - Draining            the engine is stopping and takes no new work
 - StoreTrouble        the store takes no writes now; nothing was acknowledged
 - LoopFailed          a family's loop raised: its job ends, nothing else does
 - HistoryError        a log that cannot be read
    - UnknownEvent     an event tag that this code does not know
    - IllegalMove      an event that the job's state does not allow
    - UnreadableBody   the body of an event or a checkpoint is not what its type says
"""


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


class Draining(EngineError):
    def __init__(self) -> None:
        super().__init__("the engine is stopping; ask again in a moment")


class StoreTrouble(EngineError):
    """The message is the store's own."""


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
