"""The loops of Flux 2: encode the prompts, denoise, decode. Data only, no torch."""

from cards import canvas
from cards.card import ModelCard
from cards.counted import Counted
from cards.loop import Loop, LoopContext, LoopState
from cards.wire import Scalar


class EncodeText(Counted):
    """`conditions` are the prompts that the model is steered by: `text`, and `negative` where there is guidance."""

    semantics = "flux2.encode_text/1"

    def __init__(self, instance: str, conditions: tuple[str, ...]) -> None:
        super().__init__(instance)
        self._conditions = conditions

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        prompts = {"text": context.request.prompt, "negative": context.request.negative_prompt}
        return {condition: prompts[condition] for condition in self._conditions}

    def writes(self, state: LoopState) -> tuple[str, ...]:
        return self._conditions


class Denoise(Counted):
    semantics = "flux2.euler.cfg/1"

    def steps(self, context: LoopContext) -> int:
        return context.request.steps

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {"seed": context.request.seed, "guidance": context.request.guidance, **_size(context)}

    def writes(self, state: LoopState) -> tuple[str, ...]:
        return ("latent",)


class DecodeVae(Counted):
    semantics = "flux2.decode_vae/1"

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return _size(context)

    def writes(self, state: LoopState) -> tuple[str, ...]:
        return ("image",)


def _size(context: LoopContext) -> dict[str, Scalar]:
    width, height, _ = canvas.pixels(context.request, context.card.output)
    return {"width": width, "height": height}


def loops(card: ModelCard, conditions: tuple[str, ...]) -> dict[str, Loop]:
    made: tuple[Loop, ...] = (EncodeText(card.name, conditions), Denoise(card.name), DecodeVae(card.name))
    return {loop.semantics: loop for loop in made}
