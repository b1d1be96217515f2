"""The loops of Wan-causal: encode the prompt, roll the clip out chunk by chunk. Data only, no torch.

What a chunk's context pass makes, keys and values, is never stored: it follows from the clean latents, is read by the
chunks after it, and is made again by the same passes where it is lost. So is the cache of the VAE.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from cards import canvas
from cards.card import ModelCard
from cards.counted import Counted, Simple, fps
from cards.loop import Loop, LoopContext, LoopState, StepOutput
from cards.wan.loops import prompt
from cards.wan_causal.card import DENOISING_STEPS, semantics
from cards.wan_causal.window import chunks, visible
from cards.wire import Scalar, TensorRef, WorkPlan

DENOISE = len(DENOISING_STEPS)
KNOWN = ("context", "decode")
FRESH = (*("denoise" for _ in DENOISING_STEPS), *KNOWN)


class At(Struct, frozen=True):
    """What a step does, and to which chunk: `index` counts the chunk's steps, `last` says that none comes after it."""

    kind: str
    chunk: int
    index: int
    last: bool


class Rollout(Counted):
    """Chunk after chunk: denoise it, take its keys and values, decode it; then the next one.

    Chunks of an earlier job, which come as `past/0`, `past/1`, ..., are known: they are only taken in. The last
    chunk's keys and values would be nobody's. `latent/<chunk>` and `frames/<chunk>` come out.
    """

    def __init__(self, instance: str, window: int, sink: int) -> None:
        super().__init__(instance)
        self.semantics = semantics(window, sink)
        self._window = window
        self._sink = sink

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        past = {name.replace("past", "latent"): ref for name, ref in inputs.items() if name.startswith("past/")}
        state = super().init(context, {name: ref for name, ref in inputs.items() if name == "text"})
        fresh = int(state.scalars["chunks"]) - len(past)
        if fresh < 1:
            raise ValueError(f"{len(past)} chunks are there, {state.scalars['chunks']} are asked for")
        steps = len(past) * len(KNOWN) + fresh * len(FRESH) - 1
        return replace(state, steps=steps, tensors=past, scalars=state.scalars | {"past": len(past)})

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        output = context.card.output
        assert output.canvas
        width, height, frames = canvas.pixels(context.request, output)
        return {
            "seed": context.request.seed,
            "shift": context.card.recipe.shift,
            "width": width,
            "height": height,
            "fps": output.fps,
            "chunks": (frames - (output.canvas.frames_first or 1)) // output.canvas.frames_multiple + 1,
            "window": self._window,
            "sink": self._sink,
        }

    def plan(self, state: LoopState) -> WorkPlan:
        at = _at(state)
        plan = replace(super().plan(state), kind=at.kind)
        plan = replace(plan, scalars=plan.scalars | {"chunk": at.chunk, "index": at.index})
        kept = state.tensors
        match at.kind:
            case "decode":
                reads = _named(kept, (f"latent/{at.chunk}", "cache"))
                derives = () if at.last else ("cache",)
                return replace(plan, reads=reads, derives=derives, writes=(f"frames/{at.chunk}", *derives))
            case "context":
                reads = state.inputs | self._seen(kept, at.chunk) | _named(kept, (f"latent/{at.chunk}",))
                derives = (f"kv/{at.chunk}",)
                return replace(plan, reads=reads, derives=derives, writes=derives, slabs=derives)
            case _:
                reads = state.inputs | self._seen(kept, at.chunk) | _named(kept, ("x",))
                return replace(plan, reads=reads, writes=("x",) if at.index + 1 < DENOISE else (f"latent/{at.chunk}",))

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        after = super().advance(state, output)
        stays = {name: ref for name, ref in after.tensors.items() if name.startswith(("latent/", "frames/"))}
        if after.step < after.steps:
            stays |= self._read_later(after)
        return replace(after, tensors=stays)

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        return state.tensors

    def _seen(self, tensors: dict[str, TensorRef], chunk: int) -> dict[str, TensorRef]:
        """The keys and values that a chunk reads."""
        return {
            name: tensors[name] for name in (f"kv/{one}" for one in chunks(visible(chunk, self._window, self._sink)))
        }

    def _read_later(self, state: LoopState) -> dict[str, TensorRef]:
        """What comes and goes, as far as the step to come or one after it reads it."""
        at = _at(state)
        names = ("x", "cache") if at.kind == "denoise" and at.index else ("cache",)
        stays = _named(state.tensors, names)
        if at.kind != "decode":
            return stays | self._seen(state.tensors, at.chunk)
        return stays if at.last else stays | self._seen(state.tensors, at.chunk + 1)


def _at(state: LoopState) -> At:
    past, last = int(state.scalars["past"]), int(state.scalars["chunks"]) - 1
    if state.step < past * len(KNOWN):
        chunk, index = divmod(state.step, len(KNOWN))
        return At(KNOWN[index], chunk, 0, last=False)
    chunk, index = divmod(state.step - past * len(KNOWN), len(FRESH))
    chunk += past
    kinds = FRESH if chunk < last else (*FRESH[:DENOISE], "decode")
    return At(kinds[index], chunk, index, last=chunk == last)


def _named(tensors: dict[str, TensorRef], names: Iterable[str]) -> dict[str, TensorRef]:
    return {name: tensors[name] for name in names if name in tensors}


def loops(card: ModelCard, window: int, sink: int) -> dict[str, Loop]:
    made: tuple[Loop, ...] = (
        Simple(card.name, "wan_causal.encode_text/1", ("text",), prompt, feature=True),
        Rollout(card.name, window, sink),
        Simple(card.name, "wan.render/1", scalars=fps),
    )
    return {loop.semantics: loop for loop in made}
