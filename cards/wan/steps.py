"""The step bodies of Wan. What the reference pipeline computes in methods of its own is asked of those methods.

B batch, L tokens, D width, C latent channels, F latent frames, H W latent height and width, T frames, H' W' pixels.
"""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from cards import lora, media, pack, sampling
from cards.family import Artifact, Components, Made, StepBody
from cards.folding import MADE
from cards.guidance import ClassifierFree, GuidancePolicy
from cards.solvers import SOLVERS, fresh
from cards.wan.card import LEAST_TOKENS, TEXT_TOKENS, scale_of
from cards.wire import Scalar, WorkPlan

Reads = Mapping[str, Tensor]
Scalars = Mapping[str, Scalar]

GUIDANCE: Mapping[str, GuidancePolicy] = {
    "cfg": ClassifierFree("text", "negative"),
    "cfg_batched": ClassifierFree("text", "negative", together=True),
}


def encode_text(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """The prompts to (1, L, D), cleaned, padded and masked as the pipeline does it."""
    pipeline = WanPipeline(components["tokenizer"], components["text_encoder"], vae=None, scheduler=None)
    negative_prompt = plan.scalars.get("negative_prompt")
    text, negative = pipeline.encode_prompt(
        str(plan.scalars["prompt"]),
        negative_prompt,
        do_classifier_free_guidance=negative_prompt is not None,
        max_sequence_length=TEXT_TOKENS,
    )
    return Made({"text": text} if negative is None else {"text": text, "negative": negative})


def denoise(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """The velocity that the transformer sees at this step, under guidance."""
    transformer = components["transformer"]
    t_B = _scheduler(components, plan).timesteps[plan.step].expand(1)
    latent_BCFHW = _latent(components, plan, reads).to(transformer.dtype)
    policy = GUIDANCE[str(plan.scalars["policy"])]
    texts = {branch: reads[branch] for branch in policy.branches(plan.scalars)}
    with _adapted(transformer, plan, reads):
        if policy.together and _tokens(transformer, latent_BCFHW) >= LEAST_TOKENS:
            latents = latent_BCFHW.repeat(len(texts), 1, 1, 1, 1)
            rows = _velocity(transformer, latents, t_B, torch.cat([*texts.values()]))
            outputs = dict(zip(texts, rows.split(1), strict=True))
        else:
            outputs = {branch: _velocity(transformer, latent_BCFHW, t_B, text) for branch, text in texts.items()}
    velocity, remembered = policy.combine(outputs, plan.scalars)
    return Made({"velocity": velocity}, remembered)


def advance(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """What the solver makes of the velocity: the next latent, and what it remembers."""
    latent = _latent(components, plan, reads)
    velocity = reads[f"{MADE}velocity"]
    return Made(_solver(plan).advance(_scheduler(components, plan), plan.step, latent, velocity, reads))


def denoise_dmd(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """The data as a student sees it at this step, with the noise of the next one: x' = (1 - s') x0 + s' noise.

    x0 = x - s v is taken in float64, as FastVideo does. At the last step it is the latent.
    """
    transformer = components["transformer"]
    latent = _latent(components, plan, reads)
    t_B = _timestep(plan, plan.step).expand(1)
    with _adapted(transformer, plan, reads):
        velocity = _velocity(transformer, latent.to(transformer.dtype), t_B, reads["text"])
    data = (latent.double() - _level(plan, plan.step).double() * velocity.double()).float()
    following = plan.step + 1
    if following == plan.scalars["steps"]:
        return Made({"latent": data})
    seed = sampling.noise_seed(int(plan.scalars["seed"]), loop=plan.loop, step=following, purpose="noise")
    level = _level(plan, following)
    return Made({"latent": (1.0 - level) * data + level * sampling.noise(tuple(latent.shape), seed)})


def decode_vae(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """Latent frame `plan.step` to its frames, uint8 (T, H', W', 3): one, or four from the second on.

    AutoencoderKLWan keeps the cache of its causal convolutions on itself; here it is passed in and out.
    """
    vae, step = components["vae"], plan.step
    cache = pack.unpack(reads["cache"]) if step else [None] * _convolutions(vae)
    latent = _unscaled(vae, reads["latent"].to(vae.dtype))
    frame = vae.post_quant_conv(latent)[:, :, step : step + 1]
    pixels = vae.decoder(frame, feat_cache=cache, feat_idx=[0], first_chunk=step == 0).clamp(-1.0, 1.0)
    made = {f"frames/{step}": _uint8(pixels)}
    follows = plan.writes is not None and "cache" in plan.writes  # which is all that it makes where it is made again
    return Made(made | {"cache": pack.pack(cache)} if follows else made)


def render(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    frames = torch.cat([reads[f"frames/{index}"] for index in range(len(reads))]).numpy()
    return Made(
        artifacts=(
            Artifact("video.mp4", "video/mp4", media.mp4(frames, fps=int(plan.scalars["fps"]))),
            Artifact(
                "contact_sheet.png", "image/png", media.contact_sheet(frames[:: max(1, len(frames) // 12)], columns=4)
            ),
        )
    )


def _latent(components: Components, plan: WorkPlan, reads: Reads) -> Tensor:
    """That of the last step, or the noise that the first one starts from, drawn as the pipeline draws it."""
    if "latent" in reads:
        return reads["latent"]
    scalars = plan.scalars
    space, time = scale_of(components["vae"].config)
    shape = (
        1,
        components["transformer"].config.in_channels,
        (int(scalars["frames"]) - 1) // time + 1,
        int(scalars["height"]) // space,
        int(scalars["width"]) // space,
    )
    noise: Tensor = randn_tensor(
        shape, generator=torch.Generator().manual_seed(int(scalars["seed"])), dtype=torch.float32
    )
    return noise


def _tokens(transformer: Any, latent_BCFHW: Tensor) -> int:
    patch: int = math.prod(transformer.config.patch_size)
    return latent_BCFHW[0, 0].numel() // patch


def _adapted(transformer: Any, plan: WorkPlan, reads: Reads) -> AbstractContextManager[None]:
    return lora.applied(transformer, plan, reads, WanPipeline.lora_state_dict)


def _velocity(transformer: Any, latent_BCFHW: Tensor, t_B: Tensor, text_BLD: Tensor) -> Tensor:
    velocity: Tensor = transformer(
        hidden_states=latent_BCFHW,
        timestep=t_B.expand(len(latent_BCFHW)),
        encoder_hidden_states=text_BLD.to(transformer.dtype),
        return_dict=False,
    )[0]
    return velocity


def _timestep(plan: WorkPlan, step: int) -> Tensor:
    return torch.tensor(int(plan.scalars[f"timestep/{step}"]))


def _level(plan: WorkPlan, step: int) -> Tensor:
    """The noise level of a step: of those that the teacher was trained at, the one nearest to the timestep."""
    trained = FlowMatchEulerDiscreteScheduler(shift=float(plan.scalars["shift"]))
    level: Tensor = trained.sigmas[(trained.timesteps - _timestep(plan, step)).abs().argmin()]
    return level


def _scheduler(components: Components, plan: WorkPlan) -> Any:
    shift = float(plan.scalars["shift"])
    changes = {"flow_shift": shift, "shift": shift}
    template = components["scheduler"]
    known = {name: value for name, value in changes.items() if name in template.config}
    return fresh(template, _solver(plan), int(plan.scalars["steps"]), **known)


def _solver(plan: WorkPlan) -> Any:
    return SOLVERS[str(plan.scalars["solver"])]


def _convolutions(vae: Any) -> int:
    vae.clear_cache()
    count: int = vae._conv_num
    return count


def _unscaled(vae: Any, latent: Tensor) -> Tensor:
    """From the transformer's scale to the VAE's, in the pipeline's order of operations."""
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean).view(shape).to(latent.device, latent.dtype)
    reciprocal = 1.0 / torch.tensor(vae.config.latents_std).view(shape).to(latent.device, latent.dtype)
    return latent / reciprocal + mean


def _uint8(pixels_BCTHW: Tensor) -> Tensor:
    """As diffusers' VideoProcessor makes images of -1 to 1."""
    frames = (pixels_BCTHW[0].permute(1, 2, 3, 0) * 0.5 + 0.5).clamp(0, 1)
    return (frames.cpu().float() * 255).round().to(torch.uint8).contiguous()


BODIES: Mapping[str, StepBody] = {
    "encode_text": encode_text,
    "denoise": denoise,
    "denoise.fold": advance,
    "denoise_dmd": denoise_dmd,
    "decode_vae": decode_vae,
    "render": render,
}
