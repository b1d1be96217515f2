"""The shapes family with a step that goes wrong, as often and where files say.

FAULTS names a folder. A file there, `FAULT.WHERE.N`, is one fault to come: whoever is there and comes to the second
denoising step takes it away, so that it happens once. WHERE is a rank, or `engine` for the loop's code. Several of one
name befall one job, though that of another may be executed beside it.
"""

import os
import sys
from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cards.family import Asking, Components, Made, StepBody
from cards.loop import Loop, LoopState, StepOutput
from cards.shapes.family import Shapes
from cards.wire import WorkPlan, is_promised
from workers.execute import asking

KIND, STEP = "denoise", 1
TOO_MUCH = 1 << 50


class FaultyShapes(Shapes):
    def __init__(self) -> None:
        super().__init__()
        self.loops = {name: FaultyLoop(loop) for name, loop in Shapes.loops.items()}

    def bodies(self) -> Mapping[str, StepBody]:
        return {kind: _faulty(body) for kind, body in super().bodies().items()}


class FaultyLoop:
    def __init__(self, inner: Loop) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        real = not any(map(is_promised, output.tensors.values()))
        if real and (state.loop, state.step) == (KIND, STEP):
            if taken("exception", "engine"):
                raise ValueError("asked to fail")
            if taken("no-memory", "engine"):
                bytearray(TOO_MUCH)
        return self._inner.advance(state, output)


def _faulty(body: StepBody) -> StepBody:
    def run(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Asking:
        its_turn = (plan.kind, plan.step) == (KIND, STEP)
        job = frozenset(ref.digest for ref in plan.reads.values())
        if its_turn and taken("shared", _rank(), job):
            components = ChainMap({"transformer": _wants_too_much}, components)
        made = yield from asking(body(components, plan, reads))
        if its_turn:
            for fault, change in CHANGES.items():
                if taken(fault, _rank(), job):
                    return change(made)
        return made

    return run


def _raise(made: Made) -> Made:
    raise ValueError("asked to fail")


def _want_too_much(made: Made) -> Made:
    _wants_too_much()
    return made


def _wants_too_much(**called_with: Any) -> Any:
    """As a module does, when a forward comes to it."""
    import torch

    return torch.empty(TOO_MUCH)


def _nan(made: Made) -> Made:
    return replace(made, tensors={name: tensor * float("nan") for name, tensor in made.tensors.items()})


def _flip(made: Made) -> Made:
    import torch

    tensors = {name: tensor.clone() for name, tensor in made.tensors.items()}
    for tensor in tensors.values():
        tensor.view(torch.int32).reshape(-1)[0] ^= 1
    return replace(made, tensors=tensors)


CHANGES: dict[str, Callable[[Made], Made]] = {
    "exception": _raise,
    "no-memory": _want_too_much,
    "nan": _nan,
    "flip": _flip,
}


takers: dict[str, Hashable] = {}
"""Whom each fault has befallen in this process."""


def taken(fault: str, where: str, job: Hashable = None) -> bool:
    """Whether there was such a file, which is gone now."""
    if takers.get(fault, job) != job:
        return False
    folder = os.environ.get("FAULTS")
    for file in sorted(Path(folder).glob(f"{fault}.{where}.*")) if folder else ():
        try:
            file.unlink()
        except FileNotFoundError:
            continue  # somebody else's
        takers[fault] = job
        return True
    return False


def _rank() -> str:
    """As ops/worker.py starts it; a worker that a person started is rank 0."""
    return sys.argv[1] if len(sys.argv) == 4 else "0"


FAMILY = FaultyShapes()
