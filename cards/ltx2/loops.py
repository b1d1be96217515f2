"""The loops of LTX-2: encode, denoise in one stage or two with an upsampler between, decode both, render. No torch."""

from functools import partial

from cards import canvas
from cards.card import ModelCard
from cards.counted import Counted, Simple, fps
from cards.loop import Loop, LoopContext, LoopState
from cards.ltx2.card import UPSAMPLED, Version
from cards.wire import Scalar


class Denoise(Counted):
    """Euler steps of video and audio together. The latents that a stage begins with, if any, are its inputs of the
    names that its own have later; so for the generator, whose state is left to a stage that follows.
    """

    together = True

    def __init__(self, instance: str, semantics: str, version: Version, *, shrink: int = 1) -> None:
        super().__init__(instance)
        self.semantics = semantics
        self._version = version
        self._shrink = shrink

    def steps(self, context: LoopContext) -> int:
        return len(_sigmas(context)) or context.request.steps

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {
            "seed": context.request.seed,
            "sigmas": " ".join(map(repr, _sigmas(context))),
            "cross_timestep": self._version.cross_timestep,
            "skipped": self._version.skipped,
            **guidance(context),
            **grid(context, self._shrink),
        }

    def writes(self, state: LoopState) -> tuple[str, ...]:
        first = not state.step and "latent" not in state.inputs
        return ("latent", "audio", "generator") if first else ("latent", "audio")


def prompts(context: LoopContext) -> dict[str, Scalar]:
    scales = guidance(context)
    return {
        "prompt": context.request.prompt,
        "negative_prompt": context.request.negative_prompt,
        "negative": max(float(scales["video.scale"]), float(scales["audio.scale"])) > 1,
    }


def rates(context: LoopContext) -> dict[str, Scalar]:
    assert context.card.output.sample_rate
    return {**fps(context), "sample_rate": context.card.output.sample_rate}


def guidance(context: LoopContext) -> dict[str, Scalar]:
    """Four values for each modality. The request chooses how far the prompt guides the video."""
    assert context.card.recipe.guidances
    card = {
        f"{modality}.{name}": getattr(one, name)
        for modality, one in context.card.recipe.guidances.items()
        for name in one.__struct_fields__
    }
    return card | {"video.scale": context.request.guidance}


def grid(context: LoopContext, shrink: int = 1) -> dict[str, Scalar]:
    """The clip of one stage: pixels, frames, frames per second."""
    width, height, frames = canvas.pixels(context.request, context.card.output)
    return {
        "width": width // shrink,
        "height": height // shrink,
        "frames": frames,
        "fps": context.card.output.fps,
    }


def loops(card: ModelCard, version: Version) -> dict[str, Loop]:
    name = card.name
    made: tuple[Loop, ...] = (
        # the text encoder's own layers, 385 MB of them, are not kept
        Simple(name, "ltx2.encode_text/1", ("text", "audio_text", "mask"), prompts, feature=True),
        Denoise(name, "ltx2.guided/1", version),
        Denoise(name, "ltx2.base/1", version, shrink=UPSAMPLED),
        Simple(name, "ltx2.upsample/1", ("latent", "audio"), partial(grid, shrink=UPSAMPLED)),
        Denoise(name, "ltx2.refine/1", version),
        Simple(name, "ltx2.decode_video/1", ("frames",), grid),
        Simple(name, "ltx2.decode_audio/1", ("waveform",), grid),
        Simple(name, "ltx2.render/1", scalars=rates),
    )
    return {loop.semantics: loop for loop in made}


def _sigmas(context: LoopContext) -> tuple[float, ...]:
    """() where the scheduler has them."""
    return (context.card.recipe.sigmas or {}).get(context.loop, ())
