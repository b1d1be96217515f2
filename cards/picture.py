"""Pictures from words in three loops, as most models make them: encode the prompts, denoise, decode.

A family of that kind has a `Picture` with what is its own, and step bodies by the names of the loops.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from cards import canvas, solvers
from cards.card import (
    Canvas,
    LoopSpec,
    ModelCard,
    Node,
    OutputSpec,
    ParitySpec,
    Precision,
    Preset,
    Program,
    Range,
    RecipeSpec,
)
from cards.checkpoint import Checkpoint
from cards.counted import Simple, size
from cards.errors import BadCheckpoint
from cards.family import Artifact, Made, Notice, no_guidance
from cards.loop import Loop, LoopContext
from cards.model import Model
from cards.parallel import branches_only
from cards.request import ResolvedRequest
from cards.single import OneCheckpoint
from cards.tokens import TokenLimit
from cards.wire import Scalar

if TYPE_CHECKING:
    from PIL import Image

PARTS = ("tokenizer", "text_encoder", "transformer", "scheduler", "vae")

COMPONENTS = {
    "encode_text": ("tokenizer", "text_encoder"),
    "denoise": ("transformer", "scheduler"),
    "decode_vae": ("vae",),
}
"""What a step of each loop needs resident."""


class Picture(Struct, frozen=True, kw_only=True):
    """What a family has of its own. The model is steered by the prompt and, where it is `guided`, away from the
    negative one; the conditions are called `text` and `negative`.
    """

    family: str
    version: str
    semantics: tuple[str, str, str]
    """Of encoding, denoising and decoding."""
    solver: str
    method: str
    guided: bool
    steps: Range
    guidance: Range
    multiple: int
    """Of pixels in both directions."""
    most_pixels: int
    most_aspect: int
    """How much longer one side may be than the other."""
    presets: tuple[Preset, ...]
    """The first is what a request gets that names no size."""

    @property
    def conditions(self) -> tuple[str, ...]:
        return ("text", "negative") if self.guided else ("text",)

    def card(self, name: str, checkpoint: Checkpoint, precision: Precision) -> ModelCard:
        """Its outputs are held to those of the pipeline that the checkpoint names. Raises BadCheckpoint."""
        if self.solver not in (found := solvers.of(checkpoint)):
            problem = f"its solver is one of {', '.join(found)}; {self.family} runs {self.solver}"
            raise BadCheckpoint(checkpoint.parts["scheduler"].folder, problem)
        components = checkpoint.components(precision)
        return ModelCard(
            name=name,
            family=self.family,
            version=self.version,
            task="text_to_image",
            components={part: components[part] for part in PARTS},
            loops={
                loop: LoopSpec(semantics=semantics, components=parts)
                for semantics, (loop, parts) in zip(self.semantics, COMPONENTS.items(), strict=True)
            },
            recipe=RecipeSpec(
                method=self.method,
                data="as published",
                assumes_loop={"denoise": self.semantics[1]},
                assumes_precision=precision,
                steps=self.steps,
                guidance=self.guidance,
                shift=1.0,
            ),
            parity=ParitySpec(reference=f"diffusers.{checkpoint.pipeline}", rung="C1"),
            output=self._output(),
            program=self._program(),
            prompt_limit=10_000,
        )

    def loops(self, name: str) -> dict[str, Loop]:
        """Of the card of that name, by semantics. The size is among the scalars of those that ask the canvas."""
        encode, denoise, decode = self.semantics
        return {
            encode: Simple(name, encode, self.conditions, self._prompts, feature=True),
            denoise: Simple(name, denoise, ("latent",), _denoising, _steps, together=True),
            decode: Simple(name, decode, ("image",), size),
        }

    def _output(self) -> OutputSpec:
        sizes = Canvas(
            multiple=self.multiple,
            most_pixels=self.most_pixels,
            presets=self.presets,
            frames_multiple=1,
            most_frames=1,
        )
        return OutputSpec(width=self.presets[0].width, height=self.presets[0].height, frames=1, fps=1, canvas=sizes)

    def _program(self) -> Program:
        conditions = {condition: f"encode.{condition}" for condition in self.conditions}
        return Program(
            nodes=(
                Node(name="encode", loop="encode_text", outputs=self.conditions),
                Node(name="denoise", loop="denoise", inputs=conditions, outputs=("latent",)),
                Node(name="decode", loop="decode_vae", inputs={"latent": "denoise.latent"}, outputs=("image",)),
            ),
            artifacts=("image.png",),
        )

    def _prompts(self, context: LoopContext) -> dict[str, Scalar]:
        prompts = {"text": context.request.prompt, "negative": context.request.negative_prompt}
        return {condition: prompts[condition] for condition in self.conditions}


class TextToImage(OneCheckpoint, ABC):
    """A family that is a `Picture` and nothing more."""

    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        super().__init__(model, checkpoint)
        model.choose()
        checkpoint.require(*PARTS)
        self._picture = self.picture(checkpoint)
        self._tokens = self.tokens(checkpoint.parts["tokenizer"].folder)
        self.card = self._picture.card(model.name, checkpoint, self._precision)
        self.loops = self._picture.loops(model.name)

    @abstractmethod
    def picture(self, checkpoint: Checkpoint) -> Picture:
        """Of a checkpoint that has all `PARTS`."""

    @abstractmethod
    def tokens(self, tokenizer: Path) -> TokenLimit:
        """What a prompt may have at most; `tokenizer` is the folder of that."""

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        canvas.check_aspect(request, self.card.output, self._picture.most_aspect)
        self._tokens.check("prompt", request.prompt)
        if not self._picture.guided:
            return no_guidance(request, f"{self.card.name} runs without guidance and ignores it")
        self._tokens.check("negative_prompt", request.negative_prompt)
        return ()

    def unshared(self, axis: str, degree: int) -> str:
        return branches_only(axis, "" if self._picture.guided else "it runs without guidance, and has one branch")


def drawn(picture: "Image.Image") -> Made:
    """What decoding leaves: `image`, uint8 (H, W, 3), and its PNG."""
    from cards import media

    [image] = media.pixels([picture])
    return Made({"image": image}, artifacts=(Artifact("image.png", "image/png", media.still(image.numpy())),))


def _denoising(context: LoopContext) -> dict[str, Scalar]:
    return {"seed": context.request.seed, "guidance": context.request.guidance, **size(context)}


def _steps(context: LoopContext) -> int:
    return context.request.steps
