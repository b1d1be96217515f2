"""The pipelines of diffusers on the same checkpoint and request."""

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from diffusers import FirstBlockCacheConfig, UniPCMultistepScheduler, WanPipeline
from PIL import Image
from torch import Tensor

from cards import canvas, media
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint
from cards.errors import NoReference
from cards.extensions.block_cache import BlockCache
from cards.lora import INPUT
from cards.reference import Steps, parts
from cards.request import ResolvedRequest
from cards.solvers import TRAIN_STEPS, shifted
from cards.wan.card import FROM_IMAGE, TEXT_TOKENS

Given = Mapping[str, Tensor]


def outputs(
    checkpoint: Checkpoint, precision: Precision, card: ModelCard, solver: str, request: ResolvedRequest, given: Given
) -> dict[str, Tensor]:
    """The latent (1, C, F, H, W) after each step, and the frames of each latent frame, uint8 (T, H', W', 3).

    Raises NoReference for an interceptor that diffusers does not have.
    """
    assert card.output.canvas
    width, height, frames = canvas.pixels(request, card.output)
    made = pipeline(checkpoint, precision, request, given)
    made.scheduler = shifted(made.scheduler, card.output.canvas.shift(width, height))
    if solver == "flow_unipc":
        made.scheduler = WansLevels.from_config(made.scheduler.config)
    _intercept(made, request)
    steps, experts = Steps("denoise", latent="latents"), card.recipe.experts
    [clip] = made(
        **_conditions(made, request, given),
        width=width,
        height=height,
        num_frames=frames,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance,
        guidance_scale_2=experts.guidance if experts else None,
        generator=torch.Generator().manual_seed(request.seed),
        callback_on_step_end=steps,
        output_type="pil",
    ).frames
    return steps.kept | dict(parts("decode.frames", media.pixels(clip), card.output.canvas))


def pipeline(checkpoint: Checkpoint, precision: Precision, request: ResolvedRequest, given: Given) -> Any:
    """With the request's LoRAs loaded."""
    kind = getattr(diffusers, checkpoint.pipeline, WanPipeline)  # there is none of a student
    made = kind.from_pretrained(checkpoint.root, dtype=getattr(torch, precision), local_files_only=True)
    made.set_progress_bar_config(disable=True)
    names = [f"{INPUT}/{index}" for index in range(len(request.loras))]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several are what is wanted
        for index, name in enumerate(names):
            file = Path(folder) / f"{index}.safetensors"
            file.write_bytes(given[name].numpy().tobytes())
            made.load_lora_weights(file, adapter_name=f"number{index}")
    if names:
        made.set_adapters([f"number{index}" for index in range(len(names))], [one.strength for one in request.loras])
    return made


def decoded(pipeline: Any, latent: Tensor) -> Tensor:
    """All frames of a clip at once, uint8 (T, H, W, 3), as the last lines of the pipeline make them."""
    vae = pipeline.vae
    latent = latent.to(vae.dtype)
    mean, deviation = (
        torch.tensor(one).view(1, -1, 1, 1, 1).to(latent.dtype)
        for one in (vae.config.latents_mean, vae.config.latents_std)
    )
    video = vae.decode(latent / (1.0 / deviation) + mean, return_dict=False)[0]
    [clip] = pipeline.video_processor.postprocess_video(video, output_type="pil")
    return media.pixels(clip)


class WansLevels(UniPCMultistepScheduler):  # type: ignore[misc]
    """diffusers' steps between the noise levels of Wan's own scheduler."""

    def set_timesteps(self, num_inference_steps: int, device: Any = None, **options: Any) -> None:
        super().set_timesteps(num_inference_steps, device, **options)
        self.timesteps, self.sigmas = wans_levels(num_inference_steps, self.config.flow_shift)


def wans_levels(steps: int, shift: float) -> tuple[Tensor, Tensor]:
    """Timesteps and noise levels as wan/utils/fm_solvers_unipc.py makes them in `__init__` and `set_timesteps`."""
    alphas = np.linspace(1, 1 / TRAIN_STEPS, TRAIN_STEPS)[::-1].copy()
    trained = torch.from_numpy(1.0 - alphas).to(torch.float32)
    sigmas = np.linspace(trained[0].item(), trained[-1].item(), steps + 1).copy()[:-1]
    sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
    timesteps = torch.from_numpy(sigmas * TRAIN_STEPS).to(torch.int64)
    return timesteps, torch.from_numpy(np.concatenate([sigmas, [0.0]]).astype(np.float32))


def _conditions(pipeline: Any, request: ResolvedRequest, given: Given) -> dict[str, Any]:
    prompts = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
    if type(pipeline).__name__ != FROM_IMAGE:
        return {**prompts, "max_sequence_length": TEXT_TOKENS}
    # the image pipeline of diffusers 0.42 cleans prompts with ftfy also where it is not installed; else the two agree
    text = WanPipeline(pipeline.tokenizer, pipeline.text_encoder, vae=None, scheduler=None)
    with torch.no_grad():  # with gradients, attention takes another path and gives other bits
        prompt, negative = text.encode_prompt(**prompts, max_sequence_length=TEXT_TOKENS)
    return {
        "image": Image.fromarray(given["image"].numpy()),
        "prompt_embeds": prompt,
        "negative_prompt_embeds": negative,
    }


def _intercept(pipeline: Any, request: ResolvedRequest) -> None:
    for name, threshold in request.interceptors.items():
        if name != BlockCache.name:
            raise NoReference(request.model, f"{name} is none of diffusers; leave out interceptors.{name}")
        pipeline.transformer.enable_cache(FirstBlockCacheConfig(threshold=threshold))
