"""
WorkerError
 - RanksDiverged       ranks of one pool made different bits of the same unit, or were told different things
 - RankSilent          a rank did not answer in time
 - RanksUnlike         ranks of one pool would not compute the same bits
 - ExchangeBroken      ranks that share a step are gone, late, or have ended it by themselves
 - BranchFailed        what a rank had to do of a shared step failed, on whichever rank
 - NoDevice            a rank's device is not on this machine
 - NotCompiled         a block could not be compiled, or not run so: the step is run again in eager kernels
 - WeightsTooLarge     a component that is larger than all that may be loaded
 - Refused             the engine takes no work from this worker
 - BlobsUnavailable    the blob store cannot be read or written now: the step may be run again later
 - BlobLost            bytes that a step needs are gone or damaged
 - OutOfDate           a unit of an epoch that another has followed here already
 - BrokenPromise       a step made other tensors than its plan said, or not the one that a unit behind it reads
 - FoldDiffers         what a step derived came out otherwise when it was made again
"""

from collections.abc import Sequence

from cards import memory
from cards.errors import NotFinite
from cards.wire import StepError


class WorkerError(Exception):
    """Root of what ends a worker process."""


class RanksDiverged(WorkerError):
    """`theirs` and `mine` say what the ranks did: that they made something, failed, or were told something."""

    def __init__(self, rank: int, theirs: str, mine: str) -> None:
        super().__init__(f"rank {rank} {theirs} where rank 0 {mine}")
        self.rank = rank


class RankSilent(WorkerError):
    def __init__(self, ranks: Sequence[int], seconds: float) -> None:
        super().__init__(f"{_named(ranks)} not answered for {seconds:g} s")
        self.ranks = ranks


class RanksUnlike(WorkerError):
    def __init__(self, rank: int, mine: str, theirs: str) -> None:
        super().__init__(f"rank {rank} computes with {theirs} where rank 0 computes with {mine}")
        self.rank = rank


class ExchangeBroken(WorkerError):
    """It ends the pool, and is no answer of the step."""

    def __init__(self, ranks: Sequence[int], problem: str) -> None:
        super().__init__(f"{_named(ranks)} {problem}")
        self.ranks = ranks


class BranchFailed(WorkerError):
    """`error` is the step's."""

    def __init__(self, error: StepError) -> None:
        super().__init__(error.message)
        self.error = error


class NoDevice(WorkerError):
    def __init__(self, asked: str, index: int, there: int) -> None:
        found = f"this machine has {there}, cuda:0 to cuda:{there - 1}" if there else "torch finds no GPU here"
        remedy = "fewer workers and ranks, or cpu" if there else "use cpu or auto"
        super().__init__(f"device: {asked} needs cuda:{index}, and {found}; {remedy}")
        self.asked = asked


class BlobsUnavailable(WorkerError):
    """The message is the blob store's own."""


class BlobLost(WorkerError):
    """The message is the blob store's own."""


class OutOfDate(WorkerError):
    def __init__(self, job: str, epoch: int) -> None:
        super().__init__(f"a unit of job {job} under epoch {epoch} came behind those of a later one")


class BrokenPromise(WorkerError):
    def __init__(self, promise: str) -> None:
        super().__init__(f"what a step promised to make and what it made differ: {promise}")


class FoldDiffers(WorkerError):
    def __init__(self, step: int, name: str, logged: str, found: str) -> None:
        super().__init__(
            f"{name} of step {step}, made again from what is stored, is {found[:16]} and not {logged[:16]}: "
            "other bytes, other code or other numerics than when the step ran"
        )


class NotCompiled(WorkerError):
    """The message is the compiler's."""


class WeightsTooLarge(WorkerError):
    def __init__(self, name: str, nbytes: int, budget: int) -> None:
        super().__init__(f"weights_bytes: {budget} is less than {name}, which is {nbytes}: set it to that at least")


class Refused(WorkerError):
    """The message is the engine's reason."""


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"


OOM = "oom"
"""The kind of error of a step that ran out of memory."""


def step_error(error: Exception) -> StepError:
    if isinstance(error, BranchFailed):
        return error.error
    kinds = {
        BlobsUnavailable: "store_trouble",
        BlobLost: "corrupt_checkpoint",
        FoldDiffers: "corrupt_checkpoint",
        NotFinite: "nan",
    }
    other = OOM if memory.ran_out(error) else "error"
    kind = next((kind for cause, kind in kinds.items() if isinstance(error, cause)), other)
    return StepError(kind, f"{type(error).__name__}: {error}")
