"""The step bodies of the shapes model: pure functions of modules, a plan and the tensors it reads.

B batch, L words, D width, C latent channels, F latent frames, H W latent height and width, T frames, H' W' pixels.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from cards import media, sampling
from cards.family import Artifact, Asking, Components, Made, Reads, StepBody
from cards.forward import Forward, single
from cards.guidance import ClassifierFree, GuidancePolicy
from cards.shapes.card import CARD, SCALE
from cards.shapes.model import CONFIG
from cards.shapes.vocabulary import tokenize
from cards.wire import WorkPlan

GUIDANCE: GuidancePolicy = ClassifierFree("text", "negative")


def encode_text(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """Both prompts to (1, L, D). They are encoded one by one: a job's bits do not depend on what ran beside it."""
    encoder = components["text_encoder"]
    return Made(
        {
            "text": encoder(_tokens_1L(str(plan.scalars["prompt"])).to(encoder.positions.device)),
            "negative": encoder(_tokens_1L(str(plan.scalars["negative_prompt"])).to(encoder.positions.device)),
        }
    )


def denoise(components: Components, plan: WorkPlan, reads: Reads) -> Asking:
    """One Euler step under guidance; the first one draws the noise that it starts from."""
    steps, shift = int(plan.scalars["steps"]), float(plan.scalars["shift"])
    t, next_t = (sampling.flow_time(step, steps, shift) for step in (plan.step, plan.step + 1))
    device = reads["text"].device
    latent_BCFHW = reads["latent"] if "latent" in reads else _first_latent(int(plan.scalars["seed"])).to(device)
    t_BF = torch.full((1, CONFIG.latent_frames), t, device=device)
    forwards = {
        branch: Forward(
            components["transformer"], {"latent_BCFHW": latent_BCFHW, "t_BF": t_BF, "text_BLD": reads[branch]}
        )
        for branch in GUIDANCE.branches(plan.scalars)
    }
    velocity_BCFHW, remembered = GUIDANCE.combine(single((yield forwards)), plan.scalars)
    artifacts: tuple[Artifact, ...] = ()
    if "preview" in plan.emits:
        artifacts = (_preview(components, sampling.data_estimate(latent_BCFHW, velocity_BCFHW, t)),)
    return Made({"latent": sampling.euler(latent_BCFHW, velocity_BCFHW, t, next_t)}, remembered, artifacts)


def decode_vae(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """Latent frame `plan.step` to its frames, uint8 (T, H', W', 3)."""
    return Made({f"frames/{plan.step}": _decode(components, reads["latent"], plan.step)})


def render(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    frames = torch.cat([reads[f"frames/{index}"] for index in range(len(reads))]).numpy()
    return Made(
        artifacts=(
            Artifact("video.mp4", "video/mp4", media.mp4(frames, fps=CARD.output.fps, scale=SCALE)),
            Artifact("contact_sheet.png", "image/png", media.contact_sheet(frames, columns=6, scale=2)),
        )
    )


def _tokens_1L(prompt: str) -> Tensor:
    ids, _ = tokenize(prompt)
    return torch.tensor([ids])


def _first_latent(seed: int) -> Tensor:
    key = sampling.noise_seed(seed, loop="denoise", step=0, purpose="latent")
    return sampling.noise((1, *CONFIG.latent_shape), key)


def _decode(components: Components, latent_BCFHW: Tensor, frame: int) -> Tensor:
    frames_BTHWC = components["vae"].decoder(latent_BCFHW[:, :, frame : frame + 1])
    pixels: Tensor = (frames_BTHWC[0] * 255).round().to(torch.uint8)
    return pixels


def _preview(components: Components, latent_BCFHW: Tensor) -> Artifact:
    """A still from the middle of what the clip would be if it ended here."""
    frames = _decode(components, latent_BCFHW, CONFIG.latent_frames // 2)
    return Artifact("preview.png", "image/png", media.still(frames[0].cpu().numpy(), scale=SCALE))


BODIES: Mapping[str, StepBody] = {
    "encode_text": encode_text,
    "denoise": denoise,
    "decode_vae": decode_vae,
    "render": render,
}
