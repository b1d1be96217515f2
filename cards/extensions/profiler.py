"""Seconds of a step by phase and by module: `profiler`.

`seconds/<kind>` is the body, `seconds/<kind>.fold` what is derived from it, `seconds/transformer` all calls of that
component, `seconds/transformer.blocks` those of its blocks. A part's time is also in that of the whole.
"""

from functools import partial
from time import perf_counter
from typing import Any

import torch

from cards.extensions.modules import Hooks, parts
from cards.extensions.observer import Observed, Observer, Seen
from cards.family import Made


class Profiler(Observer):
    """A GPU is waited for at each of these places, so that what it still does is not another one's time."""

    looks_inside = True

    def __init__(self) -> None:
        self._hooks = Hooks()
        self._seconds: dict[str, float] = {}
        self._began: list[float] = []

    def before_step(self, step: Seen) -> None:
        self._seconds = {}
        self._began = [_now()]

    def component(self, step: Seen, name: str, component: Any) -> None:
        if isinstance(component, torch.nn.Module):
            for part, module in parts(name, component):
                self._hooks.before(module, self._begins)
                self._hooks.after(module, partial(self._ended, part))

    def after_step(self, step: Seen, made: Made | None) -> Observed:
        self._hooks.remove()
        del self._began[1:]  # of modules that raised
        self._ended(step.plan.kind)
        return {f"seconds/{name}": seconds for name, seconds in self._seconds.items()}

    def _begins(self) -> None:
        self._began.append(_now())

    def _ended(self, name: str, output: Any = None) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + _now() - self._began.pop()


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter()


def open(argument: str) -> Observer:
    return Profiler()
