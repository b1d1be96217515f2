"""The toy program without an engine: one step after another, as a person would write it down.

It knows the rule for a changed request in words, and shares no code with `engine.fork`: what was made from the old
words is made again, what is being counted is counted on.
"""

from typing import Any

from msgspec import structs

from cards.request import GenerationRequest
from cards.wire import Resources, TensorRef, UnitId, WorkPlan, WorkUnit
from store.blobs import MemoryBlobs
from tests import toy
from workers.execute import Executor
from workers.loaded import load_models


class Serial:
    def __init__(self, request: GenerationRequest) -> None:
        self.made: list[tuple[str, int, dict[str, str]]] = []
        self._request = structs.asdict(request) | {"guidance": request.guidance or 1.0}
        self._executor = Executor(load_models({"toy": toy.FAMILY}), MemoryBlobs())
        self._start: dict[str, TensorRef] = {}
        self._x: dict[str, TensorRef] = {}
        self._counted = 0
        self._todo = ["prepare", *["count"] * int(self._request["steps"]), "finish"]

    @property
    def ended(self) -> bool:
        return not self._todo

    def change(self, **fields: Any) -> None:
        before = dict(self._request)
        self._request |= fields
        at_finish = self._todo == ["finish"]
        prepares_otherwise = any(before[name] != self._request[name] for name in ("seed", "prompt"))
        counts_otherwise = prepares_otherwise or before["guidance"] != self._request["guidance"]
        if prepares_otherwise and "prepare" not in self._todo:
            self._todo.insert(0, "prepare")
        if counts_otherwise and at_finish:
            self._todo = [*self._todo[:-1], *["count"] * int(self._request["steps"]), "finish"]
            self._counted, self._x = 0, {}

    def step(self) -> None:
        kind = self._todo.pop(0)
        step = self._counted if kind == "count" else 0
        unit = WorkUnit(UnitId("serial", 0, len(self.made), 0), self._plan(kind, step), keep=self._keep())
        result = self._executor.run(unit, []).result
        assert result.error is None, result.error
        self.made.append((kind, step, {name: ref.digest for name, ref in result.tensors.items()}))
        if kind == "prepare":
            self._start = result.tensors
        elif kind == "count":
            self._x = result.tensors
            self._counted += 1

    def _plan(self, kind: str, step: int) -> WorkPlan:
        reads = {"prepare": {}, "count": self._start | self._x}.get(kind)
        if reads is None:
            reads = {"x": self._x["x"], "parts/0": self._x["x"], "parts/1": self._start["start"]}
        scalars = {name: self._request[name] for name in ("seed", "prompt", "guidance", "preview_every")}
        return WorkPlan(
            instance="toy", loop=kind, kind=kind, step=step, reads=reads, scalars=scalars, resources=Resources()
        )

    def _keep(self) -> tuple[str, ...]:
        return tuple(ref.digest for ref in (*self._start.values(), *self._x.values()))
