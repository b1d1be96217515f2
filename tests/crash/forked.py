"""Work done by a process of its own, forked from this one: it may be killed, and leaves nothing behind."""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")

PATIENCE_S = 60
"""Work takes well under a second. What takes this long hangs, and is ended."""


class Ended(Struct, frozen=True):
    """`result` is None if the process was killed or failed; a failure has been printed."""

    code: int
    result: bytes | None

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


def forked(work: Callable[[], Any]) -> Ended:
    """Wait for the work and give its result as JSON."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_the_child(work, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ended(code, result if code == 0 else None)


def result_of(work: Callable[[], T], kind: type[T]) -> T:
    """The result of work that must not fail."""
    ended = forked(work)
    if ended.result is None:
        raise RuntimeError(f"ended with {ended.code}")
    return msgspec.json.decode(ended.result, type=kind)


def _be_the_child(work: Callable[[], Any], writing: int) -> None:
    gc.disable()  # a collection would touch, and so copy, every page that it shares with its parent
    signal.alarm(PATIENCE_S)
    sys.setswitchinterval(5.0)  # threads give way where they wait and nowhere else: twice the same is twice the same
    write = os.write  # whoever works may replace it
    try:
        left = memoryview(msgspec.json.encode(work()))
        while left:
            left = left[write(writing, left) :]
        os._exit(0)
    except BaseException:  # noqa: BLE001  it ends here, whatever it was, and not in what the parent was doing
        traceback.print_exc()
        os._exit(1)
