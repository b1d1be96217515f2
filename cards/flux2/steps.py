"""The step bodies of Flux 2. What the reference pipeline computes in methods of its own is asked of those methods.

B batch, L tokens, D width, C channels of a token, H W picture height and width in tokens, H' W' pixels.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from diffusers import Flux2KleinPipeline
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from torch import Tensor

from cards.family import Asking, Components, Made, Reads, StepBody
from cards.forward import Forward, single
from cards.guidance import ClassifierFree
from cards.picture import PARTS, drawn
from cards.solvers import SOLVERS, begun
from cards.wire import WorkPlan

GUIDANCE = ClassifierFree("text", "negative")


def encode_text(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """Each prompt to (1, L, D), in the chat's template and padded as the pipeline does it."""
    pipeline = _pipeline(components, "tokenizer", "text_encoder")
    return Made({name: pipeline.encode_prompt(str(plan.scalars[name]))[0] for name in plan.writes or ()})


def denoise(components: Components, plan: WorkPlan, reads: Reads) -> Asking:
    """The latent (1, H * W, C) one step nearer to the picture. The shift grows with H * W, and falls with the steps."""
    pipeline, steps = _pipeline(components, "transformer", "vae"), int(plan.scalars["steps"])
    transformer = pipeline.transformer
    latent_BLC = reads["latent"] if "latent" in reads else _noise(pipeline, plan, reads["text"].dtype)
    mu = compute_empirical_mu(image_seq_len=latent_BLC.shape[1], num_steps=steps)
    scheduler = begun(components["scheduler"], sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)

    def forward(text_BLD: Tensor) -> Forward:
        rows = {
            "hidden_states": latent_BLC.to(transformer.dtype),
            "timestep": scheduler.timesteps[plan.step].expand(1).to(latent_BLC) / 1000,
            "encoder_hidden_states": text_BLD,
        }
        places = {
            "txt_ids": pipeline._prepare_text_ids(text_BLD).to(latent_BLC.device),
            "img_ids": _places(pipeline, plan, latent_BLC),
        }
        return Forward(transformer, rows, {"guidance": None, **places, "return_dict": False})

    outputs = yield {branch: forward(reads[branch]) for branch in GUIDANCE.branches(plan.scalars)}
    velocity, remembered = GUIDANCE.combine(single(outputs), plan.scalars)
    return Made(SOLVERS["euler"].advance(scheduler, plan.step, latent_BLC, velocity, {}), remembered)


def decode_vae(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """The picture, uint8 (H', W', 3), and its PNG."""
    pipeline, vae, latent_BLC = _pipeline(components, "vae"), components["vae"], reads["latent"]
    latent_BCHW = pipeline._unpack_latents_with_ids(latent_BLC, _places(pipeline, plan, latent_BLC))
    pixels = vae.decode(pipeline._unpatchify_latents(_unscaled(vae, latent_BCHW)), return_dict=False)[0]
    [picture] = pipeline.image_processor.postprocess(pixels, output_type="pil")
    return drawn(picture)


def _pipeline(components: Components, *names: str) -> Any:
    """The reference pipeline with some of its modules, for its methods."""
    return Flux2KleinPipeline(**{name: components[name] if name in names else None for name in PARTS})


def _noise(pipeline: Any, plan: WorkPlan, dtype: torch.dtype) -> Tensor:
    """Drawn channel by channel and then packed, which leaves the channels far apart in memory: they stay so."""
    channels, device = pipeline.transformer.config.in_channels // 4, pipeline.transformer.device
    height, width, seed = (int(plan.scalars[name]) for name in ("height", "width", "seed"))
    generator = torch.Generator().manual_seed(seed)
    noise: Tensor = pipeline.prepare_latents(1, channels, height, width, dtype, device, generator)[0]
    return noise


def _places(pipeline: Any, plan: WorkPlan, latent_BLC: Tensor) -> Tensor:
    """Where each token of the picture is, (1, H * W, 4). One is two latents wide and high."""
    height, width = (int(plan.scalars[name]) // (2 * pipeline.vae_scale_factor) for name in ("height", "width"))
    places: Tensor = pipeline._prepare_latent_ids(torch.empty(1, 0, height, width))
    return places.to(latent_BLC.device)


def _unscaled(vae: Any, latent_BCHW: Tensor) -> Tensor:
    """From the transformer's scale to the VAE's, in the pipeline's order of operations."""
    mean = vae.bn.running_mean.view(1, -1, 1, 1).to(latent_BCHW)
    std = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps).to(latent_BCHW)
    unscaled: Tensor = latent_BCHW * std + mean
    return unscaled


BODIES: Mapping[str, StepBody] = {"encode_text": encode_text, "denoise": denoise, "decode_vae": decode_vae}
