"""
WorkerError
 - RanksDiverged    ranks of one pool made different bits of the same unit
 - RankSilent       a rank did not answer in time
"""


class WorkerError(Exception):
    """Root of what ends a worker process."""


class RanksDiverged(WorkerError):
    def __init__(self, rank: int, mine: str, theirs: str) -> None:
        super().__init__(f"rank {rank} made {theirs[:16]} where rank 0 made {mine[:16]}")
        self.rank = rank


class RankSilent(WorkerError):
    def __init__(self, rank: int, seconds: float) -> None:
        super().__init__(f"rank {rank} has not answered for {seconds:g} s")
        self.rank = rank
