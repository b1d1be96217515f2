"""A family for tests: a clip that fades in to the picture it is given. Its loops are named as those of other cards."""

from collections.abc import Mapping
from typing import Any

from cards import canvas, media, sampling
from cards.card import (
    Canvas,
    ComponentSpec,
    InputSpec,
    LoopSpec,
    ModelCard,
    Node,
    OutputSpec,
    ParitySpec,
    Preset,
    Program,
    Range,
    RecipeSpec,
)
from cards.counted import Counted
from cards.family import Artifact, Components, Made, Notice, StepBody
from cards.loop import LoopContext, LoopState
from cards.request import ResolvedRequest
from cards.wire import Scalar, WorkPlan

SIZE = Canvas(multiple=2, most_pixels=4096, presets=(Preset(48, 32, 1.0),), frames_multiple=4, most_frames=9)

CARD = ModelCard(
    name="fade",
    family="fade",
    version="1",
    task="image_to_video",
    components={"vae": ComponentSpec(kind="vae", parameters=0)},
    loops={
        "denoise": LoopSpec(semantics="fade.denoise/1", components=("vae",)),
        "render": LoopSpec(semantics="fade.render/1"),
    },
    recipe=RecipeSpec(
        method="fading",
        data="none",
        assumes_loop={"denoise": "fade.denoise/1"},
        assumes_precision="float32",
        steps=Range(1, 10, 3),
        guidance=Range(0, 10, 1),
        shift=1.0,
    ),
    parity=ParitySpec(reference="itself", rung="C1"),
    output=OutputSpec(width=48, height=32, frames=5, fps=8, canvas=SIZE),
    program=Program(
        nodes=(
            Node(name="denoise", loop="denoise", inputs={"image": "request.image"}, outputs=("latent",)),
            Node(name="render", loop="render", inputs={"latent": "denoise.latent"}),
        ),
        artifacts=("video.mp4",),
    ),
    prompt_limit=500,
    inputs={"image": InputSpec(kind="image")},
)


class Denoise(Counted):
    semantics = "fade.denoise/1"

    def steps(self, context: LoopContext) -> int:
        return context.request.steps

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        assert context.card == CARD
        assert context.request.model == CARD.name
        return {"seed": context.request.seed, "guidance": context.request.guidance}

    def writes(self, state: LoopState) -> tuple[str, ...]:
        return ("latent",)


class Render(Counted):
    semantics = "fade.render/1"

    def scalars(self, context: LoopContext) -> dict[str, Scalar]:
        return {"fps": context.card.output.fps, "frames": canvas.pixels(context.request, context.card.output)[2]}


def denoise(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
    """Half way from noise to the picture, float32 (H, W, 3)."""
    image = reads["image"].float() / 255
    seed = sampling.noise_seed(int(plan.scalars["seed"]), loop="denoise", step=plan.step, purpose="noise")
    latent = reads["latent"] if "latent" in reads else sampling.noise(tuple(image.shape), seed)
    return Made({"latent": latent + (image - latent) * (float(plan.scalars["guidance"]) / (plan.step + 2))})


def render(components: Components, plan: WorkPlan, reads: Mapping[str, Any]) -> Made:
    import torch

    count = int(plan.scalars["frames"])
    frames = torch.stack([reads["latent"].clamp(0, 1) * (255 * n / (count - 1)) for n in range(count)])
    clip = media.mp4(frames.to(torch.uint8).numpy(), fps=int(plan.scalars["fps"]))
    return Made(artifacts=(Artifact("video.mp4", "video/mp4", clip),))


class Fade:
    card = CARD

    def __init__(self, weights: str = "fade-weights") -> None:
        self.loops = {loop.semantics: loop for loop in (Denoise(CARD.name), Render(CARD.name))}
        self._weights = weights

    def weights_digest(self) -> str:
        return self._weights

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        return ()

    def load(self, device: str) -> Components:
        return {"vae": None}

    def bodies(self) -> Mapping[str, StepBody]:
        return {"denoise": denoise, "render": render}


FAMILY = Fade()
