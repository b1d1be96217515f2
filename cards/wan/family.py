"""The Wan family: a card, loops, modules and step bodies for one checkpoint directory."""

from collections.abc import Mapping
from typing import Any

from cards import canvas, solvers
from cards.checkpoint import Checkpoint
from cards.errors import InvalidCard
from cards.extensions.loops import CHOICES, bodies, notices
from cards.family import Components, Family, Notice, StepBody, Tensors
from cards.invariant import row_by_row
from cards.model import Model
from cards.modules import Modules
from cards.parallel import CFG, ULYSSES, heads_apart
from cards.request import ResolvedRequest
from cards.single import OneCheckpoint
from cards.sizes import LoopSizes
from cards.tokens import TokenLimit
from cards.ulysses import Ranks
from cards.wan import dmd
from cards.wan.card import BY_ROW, FROM_IMAGE, LOW_NOISE, POLICIES, TEXT_TOKENS, heads, most_side, video
from cards.wan.loops import loops
from cards.wan.sizes import sizes
from cards.wan_causal.family import WanCausal

LOOPS = ("bidirectional", "causal")

TRANSFORMERS = ("transformer", LOW_NOISE)


class Wan(OneCheckpoint):
    steps = "cards.wan.steps"

    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        super().__init__(model, checkpoint)
        self._batched = model.options.get("cfg") == "batched"
        self._distilled = dmd.asked(model, checkpoint)
        if self._distilled:
            model.choose(recipe=("dmd",), loop=LOOPS[:1])
            self._solver = "euler"
            self.card = dmd.student(video(model.name, checkpoint, self._precision, self._solver))
            self.loops = loops(self.card, self._solver) | {loop.semantics: loop for loop in dmd.loops(self.card)}
        else:
            options = model.choose(
                loop=LOOPS,
                solver=solvers.of(checkpoint),
                recipe=("base", "dmd"),
                cfg=(*POLICIES,),
                interceptor=CHOICES,
            )
            self._check_interceptor(model, options["interceptor"], LOW_NOISE in checkpoint.parts)
            self._solver, policy = options["solver"], POLICIES[options["cfg"]]
            self.card = video(model.name, checkpoint, self._precision, self._solver, policy, options["interceptor"])
            self.loops = loops(self.card, self._solver, policy)
        self._tokens = TokenLimit(checkpoint.parts["tokenizer"].folder, TEXT_TOKENS)
        self._most_side = most_side(checkpoint)

    def _check_interceptor(self, model: Model, interceptor: str, experts: bool) -> None:
        """Raises InvalidCard."""
        field = "options.interceptor"
        if interceptor != CHOICES[0] and self._batched:
            raise InvalidCard(model.name, field, f"{interceptor} looks at one branch at a time; leave out cfg=batched")
        if interceptor != CHOICES[0] and experts:
            raise InvalidCard(model.name, field, f"{interceptor} would hand what one expert left to the other")

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        canvas.check_sides(request, self.card.output, self._most_side)
        self._tokens.check("prompt", request.prompt)
        if self._distilled:
            return (*notices(request), *dmd.notices(request))
        self._tokens.check("negative_prompt", request.negative_prompt)
        return notices(request)

    def modules(self) -> Mapping[str, tuple[int, ...]]:
        """Those of the transformer, which LoRAs may change, with the shapes of their weights."""
        shapes = self._checkpoint.parts["transformer"].shapes()
        return {key.removesuffix(".weight"): shape for key, shape in shapes.items() if key.endswith(".weight")}

    def sizes(self, request: ResolvedRequest) -> Mapping[str, LoopSizes]:
        return sizes(self.card, self._checkpoint, self._precision, self._solver, request)

    def unshared(self, axis: str, degree: int) -> str:
        if axis == ULYSSES:
            return heads_apart(heads(self._checkpoint), degree)
        if axis != CFG:
            return ""
        if self._distilled:
            return "a student has one branch"
        return "cfg=batched evaluates all branches in one forward" if self._batched else ""

    def load(self, device: str) -> Components:
        return Modules(self._checkpoint, self._precision, device, dict.fromkeys(TRANSFORMERS, self._finish))

    def load_dealt(self, device: str, ranks: Ranks) -> Components:
        from cards.wan.dealt import deal

        def finish(transformer: Any) -> None:
            self._finish(transformer)
            deal(transformer, ranks)

        return Modules(self._checkpoint, self._precision, device, dict.fromkeys(TRANSFORMERS, finish))

    def _finish(self, transformer: Any) -> None:
        if self._batched:
            row_by_row(transformer, BY_ROW)

    def reference(self, request: ResolvedRequest, given: Tensors) -> Tensors:
        from cards.wan import dmd_reference, reference

        if self._distilled:
            return dmd_reference.outputs(self._checkpoint, self._precision, self.card, request, given)
        return reference.outputs(self._checkpoint, self._precision, self.card, self._solver, request, given)

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.wan import steps
        from cards.wan.forward import WanForward

        more = bodies("denoise", self.card.loops["denoise"], steps.denoise, steps.advance, WanForward)
        return {**steps.BODIES, **more}


def open(model: Model, checkpoint: Checkpoint) -> Family:
    """Raises BadCheckpoint, InvalidCard. Of what a causal student is, its files say nothing: the option `loop` does."""
    for name, value in (("loop", "causal"), ("recipe", "dmd")):
        if model.options.get(name) == value and not _is_plain(checkpoint):
            problem = f"{value} is for one transformer that starts from text; this is {checkpoint.pipeline}"
            raise InvalidCard(model.name, f"options.{name}", problem)
    if model.options.get("loop") == "causal":
        return WanCausal(model, checkpoint)
    return Wan(model, checkpoint)


def _is_plain(checkpoint: Checkpoint) -> bool:
    return checkpoint.pipeline != FROM_IMAGE and checkpoint.settings.get("boundary_ratio") is None
