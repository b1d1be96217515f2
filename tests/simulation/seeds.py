"""Seeds that found something. They always run.

A seed stands for what the simulator draws from it: after a change of the simulator it is another world, and the bug it
found is then held by the test that its commit brought.
"""

from msgspec import Struct


class Kept(Struct, frozen=True):
    seed: int
    engines: int
    found: str


KEPT = (
    Kept(346, 1, "a turn behind a claim that was refused fitted behind the winner's, into a job that was cancelled"),
    Kept(379, 1, "the same, with a slow disk"),
    Kept(35, 1, "an answer was lost in a reconnect, and its unit stayed with the worker for ever"),
    Kept(74, 1, "a unit was lost in a reconnect, and its job waited for ever"),
    Kept(560, 2, "a worker said hello twice and kept the tensors of what it was sent in between"),
    Kept(2951, 1, "steps longer than silence may last: introductions crossed their answers, and none was believed"),
    Kept(2637, 1, "a worker was lost while the failure of its job was on its way to disk, and the engine fell over"),
    Kept(102529, 1, "a worker obeyed an engine that was gone, dropped what it held, and the next step found nothing"),
    Kept(103305, 1, "a unit of a lost epoch came late and made the worker forget what the new owner's units read"),
    Kept(4999, 1, "a release by an engine that was gone came late and took what the new owner's unit had made"),
    Kept(4094, 1, "a late message of an engine that was gone stood in the count for a unit that was lost"),
    Kept(1438, 1, "a job ended with its worker, and the one that it had moved from kept its tensors for ever"),
    Kept(194, 2, "a job was paused elsewhere, and an engine refused to resume it: it thought that it was running"),
    Kept(407165, 1, "a unit of an engine that was gone came late, and its worker kept for ever what it made of it"),
)
