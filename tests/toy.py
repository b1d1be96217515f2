"""A family for tests: real tensors, three nodes, and a prompt that says how its steps misbehave.

    "a count sleep=0.01 fail=3 die=2 kill=2 oom=1 diverge=2 big=100000"

sleep: seconds a counting step takes. fail, oom, die, kill, diverge: the counting step that raises, runs out of memory,
ends its executor, ends its process, or gives every process its own bits. big: bytes of an extra tensor a step.
adaptive=1: what comes next is said to depend on what a step finds. start: what the preparing step adds to the start,
of which each step then takes a little.

Guidance is the weight of a counting step's noise.
"""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from cards import sampling
from cards.card import (
    ComponentSpec,
    LoopSpec,
    ModelCard,
    Node,
    OutputSpec,
    ParitySpec,
    Program,
    Range,
    RecipeSpec,
)
from cards.family import Artifact, Components, Made, Notice, StepBody
from cards.loop import Done, LoopContext, LoopState, StepOutput
from cards.request import ResolvedRequest
from cards.wire import Resources, TensorRef, WorkPlan


class Died(BaseException):
    """What ends an executor, as a crash would."""


CARD = ModelCard(
    name="toy",
    family="toy",
    version="1",
    task="text_to_video",
    components={"counter": ComponentSpec(kind="transformer", parameters=0)},
    loops={
        "prepare": LoopSpec(semantics="toy.prepare/1"),
        "count": LoopSpec(semantics="toy.count/1", components=("counter",)),
        "finish": LoopSpec(semantics="toy.finish/1"),
    },
    recipe=RecipeSpec(
        method="base",
        data="none",
        assumes_loop={"count": "toy.count/1"},
        assumes_precision="float32",
        steps=Range(1, 20_000, 4),
        guidance=Range(0, 10, 1),
        shift=1.0,
    ),
    parity=ParitySpec(reference="itself", rung="C1"),
    output=OutputSpec(width=1, height=1, frames=1, fps=1),
    program=Program(
        nodes=(
            Node(name="prepare", loop="prepare", outputs=("start",)),
            Node(name="count", loop="count", inputs={"start": "prepare.start"}, outputs=("parts", "x")),
            Node(name="finish", loop="finish", inputs={"x": "count.x", "parts": "count.parts"}),
        ),
        artifacts=("result.txt",),
    ),
    prompt_limit=1000,
)


SCALARS = {
    "prepare": ("seed", "prompt"),
    "count": ("seed", "prompt", "guidance", "preview_every"),
    "finish": (),
}
"""What each loop's maths depends on."""


class ToyLoop:
    """`outputs` says which of the last state's tensors are the loop's result."""

    def __init__(self, semantics: str, outputs: tuple[str, ...]) -> None:
        self.semantics = semantics
        self._outputs = outputs

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        request = context.request
        return LoopState(
            loop=context.loop,
            semantics=self.semantics,
            step=0,
            steps=request.steps if context.loop == "count" else 1,
            inputs=inputs,
            scalars={name: getattr(request, name) for name in SCALARS[context.loop]},
        )

    def next(self, state: LoopState) -> WorkPlan | Done:
        if state.step == state.steps:
            return Done()
        return WorkPlan(
            instance="toy",
            loop=state.loop,
            kind=state.loop,
            step=state.step,
            reads=state.inputs | state.tensors,
            scalars=state.scalars,
            resources=Resources(peak_bytes=1 << 20),
            writes=self._writes(state),
        )

    def _writes(self, state: LoopState) -> tuple[str, ...] | None:
        if state.loop != "count" or "adaptive" in directives(str(state.scalars["prompt"])):
            return None
        return ("x", "big") if "big" in directives(str(state.scalars["prompt"])) else ("x",)

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        return replace(state, step=state.step + 1, tensors=state.tensors | output.tensors)

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        outputs = {name: ref for name, ref in state.tensors.items() if name in self._outputs}
        return outputs | ({"parts/0": state.tensors["x"], "parts/1": state.inputs["start"]} if "x" in outputs else {})


def directives(prompt: str) -> dict[str, float]:
    return {name: float(value) for name, _, value in (word.partition("=") for word in prompt.split()) if value}


def _prepare(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
    seed = sampling.noise_seed(int(plan.scalars["seed"]), loop="prepare", step=0, purpose="start")
    return Made({"start": sampling.noise((4, 4), seed) + directives(str(plan.scalars["prompt"])).get("start", 0.0)})


def _count(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
    import torch

    wishes = directives(str(plan.scalars["prompt"]))
    misbehave(wishes, plan.step)
    seed = sampling.noise_seed(int(plan.scalars["seed"]), loop="count", step=plan.step, purpose="noise")
    noise = sampling.noise((4, 4), seed) * float(plan.scalars.get("guidance", 1.0))
    x = (reads["x"] if "x" in reads else reads["start"]) * 0.5 + noise
    if "start" in wishes:
        x = x + reads["start"] * 0.1
    if wishes.get("diverge") == plan.step:
        x = x + os.getpid()
    tensors = {"x": x}
    if "big" in wishes:
        tensors["big"] = torch.full((int(wishes["big"]),), plan.step % 100, dtype=torch.uint8)
    every = int(plan.scalars["preview_every"])
    previews = (
        (Artifact("preview.txt", "text/plain", str(plan.step).encode()),) if every and plan.step % every == 0 else ()
    )
    return Made(tensors, {"sum": float(x.sum())}, previews)


def _finish(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
    assert set(reads) == {"x", "parts/0", "parts/1"}
    return Made({}, {}, (Artifact("result.txt", "text/plain", repr(reads["x"].tolist()).encode()),))


def misbehave(wishes: dict[str, float], step: int) -> None:
    if "sleep" in wishes:
        time.sleep(wishes["sleep"])
    if wishes.get("fail") == step:
        raise ValueError("asked to fail")
    if wishes.get("oom") == step:
        raise MemoryError("asked to run out of memory")
    if wishes.get("die") == step:
        raise Died
    if wishes.get("kill") == step:
        os.kill(os.getpid(), signal.SIGKILL)


class ToyFamily:
    def __init__(self, card: ModelCard = CARD, weights: str = "toy-weights") -> None:
        self.card = card
        self.loops = {
            loop.semantics: loop
            for loop in (
                ToyLoop("toy.prepare/1", ("start",)),
                ToyLoop("toy.count/1", ("x",)),
                ToyLoop("toy.finish/1", ()),
            )
        }
        self._weights = weights

    def weights_digest(self) -> str:
        return self._weights

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        if "unknown" in request.prompt:
            return (Notice("unknown_words", "prompt", "outside the vocabulary and ignored: unknown"),)
        return ()

    def load(self, device: str) -> Components:
        return {"counter": None}

    def bodies(self) -> Mapping[str, StepBody]:
        return {"prepare": _prepare, "count": _count, "finish": _finish}


FAMILY = ToyFamily()
