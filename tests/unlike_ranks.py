"""The toy family with two branches, in processes whose ranks are less alike than they should be, as variables say.

SKEWED: the clocks of all ranks but 0 are hours ahead and run three times as fast. LOST: the LoRA of that digest does
not load there. STOP: the rank whose number is in that file stops between two exchanges of a forward.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from cards import lora
from cards.errors import BadLora
from tests import branching
from workers import execute, peers, ranks, ulysses

RANK = int(sys.argv[1]) if sys.argv[0].endswith("worker.py") else 0


def _skewed(clock: Any) -> Any:
    return lambda: 3 * clock() + 10_000.0


def _losing(load: Any) -> Any:
    def load_others(model: Any, digest: str, data: bytes, convert: Any) -> None:
        if digest == os.environ["LOST"]:
            raise BadLora(digest, "could not be read here")
        load(model, digest, data, convert)

    return load_others


def _stopping(to_tokens: Any) -> Any:
    def stop_or_go_on(exchanges: Any, attended: Any) -> Any:
        file = Path(os.environ["STOP"])
        if file.exists() and file.read_text() == str(RANK):
            os.kill(os.getpid(), signal.SIGSTOP)
        return to_tokens(exchanges, attended)

    return stop_or_go_on


if RANK and "SKEWED" in os.environ:
    for module, name in ((execute, "perf_counter"), (peers, "monotonic"), (ranks, "monotonic")):
        setattr(module, name, _skewed(getattr(module, name)))
if RANK and "LOST" in os.environ:
    lora._load = _losing(lora._load)
if RANK and "STOP" in os.environ:
    ulysses.Exchanges.to_tokens = _stopping(ulysses.Exchanges.to_tokens)  # type: ignore[method-assign]

FAMILY = branching.FAMILY
