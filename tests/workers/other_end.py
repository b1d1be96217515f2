"""The other end of a transfer, in a process of its own that is killed when the first bytes are on their way.

python -m tests.workers.other_end holder PLACE           prints its address, and dies when a second tensor is asked for
python -m tests.workers.other_end asker PLACE ADDRESS    dies when the first bytes of one come
"""

import os
import signal
import sys
import threading
from typing import Any

from cards.wire import Fetch, UnitId, WorkPlan, WorkUnit
from workers import transfers
from workers.transfer_fetcher import Fetcher

NBYTES = 5 << 20


def die(*arguments: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def holder(place: str) -> None:
    import torch

    asked = []

    def find(job: str, digest: str) -> torch.Tensor:
        asked.append(digest)
        return die() if len(asked) == 2 else torch.zeros(NBYTES, dtype=torch.uint8)

    with transfers.transferring(find, place=place) as there:
        print(there.address, flush=True)  # noqa: T201
        threading.Event().wait()


def asker(place: str, address: str) -> None:
    transfers.read = die
    Fetcher._take = die  # type: ignore[method-assign]
    plan = WorkPlan(instance="toy", loop="step", kind="step", step=0)
    wanted = WorkUnit(UnitId("j", 1, 1, 1), plan, fetch=Fetch(address, ("first", "second")))
    with transfers.transferring(lambda job, digest: None, place=place) as there:
        there.fetch(wanted, die)
        threading.Event().wait()


if __name__ == "__main__":
    {"holder": holder, "asker": asker}[sys.argv[1]](*sys.argv[2:])
