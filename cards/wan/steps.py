"""The step bodies of Wan. What the reference pipeline computes in methods of its own is asked of those methods.

B batch, L tokens, D width, C latent channels, F latent frames, H W latent height and width, T frames, H' W' pixels.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanImageToVideoPipeline, WanPipeline
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image
from torch import Tensor

from cards import lora, media, pack, sampling
from cards.family import Artifact, Asking, Components, Made, Reads, StepBody
from cards.folding import MADE
from cards.forward import OUTPUT, Forward, single
from cards.solvers import SOLVERS, fresh
from cards.wan.card import LEAST_TOKENS, LOW_NOISE, TEXT_TOKENS, scale_of
from cards.wan.forward import weight_of
from cards.wan.loops import GUIDANCE
from cards.wire import Scalar, WorkPlan

Scalars = Mapping[str, Scalar]

TOGETHER = "together"
"""The one forward of which the branches are rows."""


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


def encode_image(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """An image, uint8 (H', W', 3), as the pipeline conditions on it.

    `condition` (1, 4 + C, F, H, W): which frames are given, beside the latent of a clip of that image and then grey.
    `image_tokens` (1, L, D): CLIP's, of the last layer but one, for transformers that attend to them.
    """
    size = {name: int(plan.scalars[name]) for name in ("height", "width")}
    picture = Image.fromarray(reads["image"].numpy())
    vae = components["vae"]
    pipeline = WanImageToVideoPipeline(
        None, None, vae, None, components.get("image_processor"), components.get("image_encoder")
    )
    _, condition = pipeline.prepare_latents(
        pipeline.video_processor.preprocess(picture, **size).to(torch.float32),
        batch_size=1,
        num_channels_latents=vae.config.z_dim,
        num_frames=int(plan.scalars["frames"]),
        dtype=torch.float32,
        device=vae.device,
        latents=torch.empty(0),  # else it would draw the noise, which is another step's
        **size,
    )
    if "image_tokens" not in (plan.writes or ()):
        return Made({"condition": condition})
    return Made({"condition": condition, "image_tokens": pipeline.encode_image(picture)})


def denoise(components: Components, plan: WorkPlan, reads: Reads) -> Asking:
    """The velocity that the transformer sees at this step, under guidance."""
    scheduler = _scheduler(components, plan)
    t_B = scheduler.timesteps[plan.step].expand(1)
    expert, scale = _expert(scheduler, plan)
    transformer = components[expert]
    latent_BCFHW = _latent(components, plan, reads)
    if "condition" in reads:
        latent_BCFHW = torch.cat([latent_BCFHW, reads["condition"]], dim=1)
    latent_BCFHW = latent_BCFHW.to(weight_of(transformer).dtype)
    scalars = {**plan.scalars, "guidance": scale}
    policy = GUIDANCE[str(scalars["policy"])]
    texts = {branch: reads[branch] for branch in policy.branches(plan.scalars)}  # whether at all, the request says
    loras = _loras(components, plan, reads) if expert == "transformer" else None
    forward = partial(_forward, transformer, t_B=t_B, seen_BLD=reads.get("image_tokens"), loras=loras)
    if policy.together and _tokens(transformer, latent_BCFHW) >= LEAST_TOKENS:
        latents = latent_BCFHW.repeat(len(texts), 1, 1, 1, 1)
        made = yield {TOGETHER: forward(latents, text_BLD=torch.cat([*texts.values()]))}
        outputs = dict(zip(texts, made[TOGETHER][OUTPUT].split(1), strict=True))
    else:
        outputs = single((yield {branch: forward(latent_BCFHW, text_BLD=text) for branch, text in texts.items()}))
    velocity, remembered = policy.combine(outputs, scalars)
    return Made({"velocity": velocity}, remembered)


def advance(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """What the solver makes of the velocity: the next latent, and what it remembers."""
    latent = _latent(components, plan, reads)
    velocity = reads[f"{MADE}velocity"]
    return Made(_solver(plan).advance(_scheduler(components, plan), plan.step, latent, velocity, reads))


def denoise_dmd(components: Components, plan: WorkPlan, reads: Reads) -> Asking:
    """The data as a student sees it at this step, with the noise of the next one: x' = (1 - s') x0 + s' noise.

    x0 = x - s v is taken in float64, as FastVideo does. At the last step it is the latent.
    """
    transformer = components["transformer"]
    latent = _latent(components, plan, reads)
    t_B = _timestep(plan, plan.step).expand(1)
    latent_BCFHW = latent.to(weight_of(transformer).dtype)
    forward = _forward(transformer, latent_BCFHW, t_B, reads["text"], loras=_loras(components, plan, reads))
    velocity = single((yield {"text": forward}))["text"]
    data = (latent.double() - _level(plan, plan.step).double() * velocity.double()).float()
    following = plan.step + 1
    if following == plan.scalars["steps"]:
        return Made({"latent": data})
    seed = sampling.noise_seed(int(plan.scalars["seed"]), loop=plan.loop, step=following, purpose="noise")
    level = _level(plan, following)
    again = sampling.noise(tuple(latent.shape), seed).to(latent.device)
    return Made({"latent": (1.0 - level) * data + level * again})


def decode_vae(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """Latent frame `plan.step` to its frames, uint8 (T, H', W', 3): one, or four from the second on.

    AutoencoderKLWan keeps the cache of its causal convolutions on itself; here it is passed in and out.
    """
    step, vae = plan.step, components["vae"]
    cache = pack.unpack(reads["cache"], str(vae.device)) if step else None
    [frames], cache = decode_frames(vae, reads["latent"], slice(step, step + 1), cache)
    made = {f"frames/{step}": frames}
    follows = plan.writes is not None and "cache" in plan.writes  # which is all that it makes where it is made again
    return Made(made | {"cache": pack.pack(cache)} if follows else made)


def decode_frames(
    vae: Any, latent_BCFHW: Tensor, which: slice, cache: list[pack.Entry] | None
) -> tuple[list[Tensor], list[pack.Entry]]:
    """Some latent frames, each to uint8 (T, H', W', 3), and the cache after them; None before the first of the clip.

    A cache that is given is used up: it becomes that after them, tensor by tensor, so that no two are in memory.
    """
    first, cache = cache is None, cache or [None] * _convolutions(vae)
    frames = vae.post_quant_conv(_unscaled(vae, latent_BCFHW.to(vae.dtype)))[:, :, which]
    decoded = []
    for index in range(frames.shape[2]):
        frame = frames[:, :, index : index + 1]
        pixels = vae.decoder(frame, feat_cache=cache, feat_idx=[0], first_chunk=first and index == 0).clamp(-1.0, 1.0)
        decoded.append(_uint8(pixels))
    return decoded, cache


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
    scalars, vae = plan.scalars, components["vae"]
    space, time = scale_of(vae.config)
    shape = (
        1,
        vae.config.z_dim,
        (int(scalars["frames"]) - 1) // time + 1,
        int(scalars["height"]) // space,
        int(scalars["width"]) // space,
    )
    generator = torch.Generator().manual_seed(int(scalars["seed"]))
    noise: Tensor = randn_tensor(shape, generator=generator, device=vae.device, dtype=torch.float32)
    return noise


def _expert(scheduler: Any, plan: WorkPlan) -> tuple[str, Scalar]:
    """The transformer of this step, and its guidance scale."""
    scalars = plan.scalars
    if "boundary" not in scalars:
        return "transformer", scalars["guidance"]
    boundary = float(scalars["boundary"]) * scheduler.config.num_train_timesteps
    high_noise = bool(scheduler.timesteps[plan.step] >= boundary)
    return ("transformer", scalars["guidance"]) if high_noise else (LOW_NOISE, scalars["guidance_2"])


def _tokens(transformer: Any, latent_BCFHW: Tensor) -> int:
    patch: int = math.prod(transformer.config.patch_size)
    return latent_BCFHW[0, 0].numel() // patch


def _loras(components: Components, plan: WorkPlan, reads: Reads) -> lora.Stack | None:
    """They are of the first transformer, as diffusers loads them."""
    return lora.stack(components, "transformer", plan, reads, WanPipeline.lora_state_dict)


def _forward(
    transformer: Any,
    latent_BCFHW: Tensor,
    t_B: Tensor,
    text_BLD: Tensor,
    seen_BLD: Tensor | None = None,
    loras: lora.Stack | None = None,
) -> Forward:
    batch = len(latent_BCFHW)
    rows = {
        "hidden_states": latent_BCFHW,
        "timestep": t_B.expand(batch).to(latent_BCFHW.device),
        "encoder_hidden_states": text_BLD.to(latent_BCFHW.dtype),
    }
    if seen_BLD is not None:
        rows["encoder_hidden_states_image"] = seen_BLD.to(latent_BCFHW.dtype).repeat(batch, 1, 1)
    return Forward(transformer, rows, {"return_dict": False}, adapters=loras, part=1)


def _timestep(plan: WorkPlan, step: int) -> Tensor:
    return torch.tensor(int(plan.scalars[f"timestep/{step}"]))


def _level(plan: WorkPlan, step: int) -> Tensor:
    """The noise level of a step: of those that the teacher was trained at, the one nearest to the timestep."""
    trained = FlowMatchEulerDiscreteScheduler(shift=float(plan.scalars["shift"]))
    level: Tensor = trained.sigmas[(trained.timesteps - _timestep(plan, step)).abs().argmin()]
    return level


def _scheduler(components: Components, plan: WorkPlan) -> Any:
    scalars = plan.scalars
    return fresh(components["scheduler"], _solver(plan), int(scalars["steps"]), float(scalars["shift"]))


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
    "encode_image": encode_image,
    "encode_text": encode_text,
    "denoise": denoise,
    "denoise.fold": advance,
    "denoise_dmd": denoise_dmd,
    "decode_vae": decode_vae,
    "render": render,
}
