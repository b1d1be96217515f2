"""The step bodies of Flux 2. What the reference pipeline computes in methods of its own is asked of those methods.

B batch, L tokens, D width, C channels of a token, H W picture height and width in tokens, H' W' pixels.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from diffusers import Flux2KleinPipeline as Pipeline
from diffusers.pipelines.flux2.image_processor import Flux2ImageProcessor
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from cards import branches, media
from cards.family import Artifact, Components, Made, StepBody
from cards.guidance import ClassifierFree, GuidancePolicy
from cards.solvers import Euler
from cards.wire import WorkPlan

Reads = Mapping[str, Tensor]

GUIDANCE: GuidancePolicy = ClassifierFree("text", "negative")


def encode_text(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """Each prompt to (1, L, D), in the chat's template and padded as the pipeline does it."""
    pipeline = Pipeline(None, None, components["text_encoder"], components["tokenizer"], None)
    conditions = plan.writes or ()
    return Made({name: pipeline.encode_prompt(str(plan.scalars[name]))[0] for name in conditions})


def denoise(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """The latent (1, H * W, C) one step nearer to the picture."""
    transformer, text = components["transformer"], reads["text"]
    latent_BLC = reads["latent"] if "latent" in reads else _noise(components, plan, text.dtype)
    scheduler = _scheduler(components, plan, tokens=latent_BLC.shape[1])
    t_B = scheduler.timesteps[plan.step].expand(1).to(latent_BLC)

    def forward(branch: str) -> Tensor:
        velocity: Tensor = transformer(
            hidden_states=latent_BLC.to(transformer.dtype),
            timestep=t_B / 1000,
            guidance=None,
            encoder_hidden_states=reads[branch],
            txt_ids=Pipeline._prepare_text_ids(reads[branch]).to(latent_BLC.device),
            img_ids=_places(components, plan).to(latent_BLC.device),
            return_dict=False,
        )[0]
        return velocity

    forwards = {branch: partial(forward, branch) for branch in GUIDANCE.branches(plan.scalars)}
    outputs = branches.evaluate_one(components, forwards)
    velocity, remembered = GUIDANCE.combine(outputs, plan.scalars)
    return Made(Euler().advance(scheduler, plan.step, latent_BLC, velocity, {}), remembered)


def decode_vae(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """The picture, uint8 (H', W', 3), and its PNG."""
    vae = components["vae"]
    height, width = _tokens(components, plan)
    places = _places(components, plan).to(vae.device)
    latent = Pipeline._unpack_latents_with_ids(reads["latent"], places, height, width)
    pixels = vae.decode(Pipeline._unpatchify_latents(_unscaled(vae, latent)), return_dict=False)[0]
    [picture] = Flux2ImageProcessor(vae_scale_factor=_pixels_per_token(vae)).postprocess(pixels, output_type="pil")
    image = np.array(picture)
    png = Artifact("image.png", "image/png", media.still(image))
    return Made({"image": torch.from_numpy(image)}, artifacts=(png,))


def _noise(components: Components, plan: WorkPlan, dtype: torch.dtype) -> Tensor:
    """Drawn channel by channel and then packed, which leaves the channels far apart in memory: they stay so."""
    transformer = components["transformer"]
    shape = (1, transformer.config.in_channels, *_tokens(components, plan))
    generator = torch.Generator().manual_seed(int(plan.scalars["seed"]))
    noise = randn_tensor(shape, generator=generator, device=transformer.device, dtype=dtype)
    packed: Tensor = Pipeline._pack_latents(noise)
    return packed


def _scheduler(components: Components, plan: WorkPlan, tokens: int) -> Any:
    """A new one at its first step. The shift grows with the number of tokens, and falls with that of steps."""
    template, steps = components["scheduler"], int(plan.scalars["steps"])
    scheduler = type(template).from_config(template.config)
    scheduler.set_timesteps(
        sigmas=np.linspace(1.0, 1 / steps, steps), mu=compute_empirical_mu(image_seq_len=tokens, num_steps=steps)
    )
    scheduler.set_begin_index(0)
    return scheduler


def _places(components: Components, plan: WorkPlan) -> Tensor:
    """Where each token of the picture is, (1, H * W, 4)."""
    ids: Tensor = Pipeline._prepare_latent_ids(torch.empty(1, 0, *_tokens(components, plan)))
    return ids


def _tokens(components: Components, plan: WorkPlan) -> tuple[int, int]:
    size = _pixels_per_token(components["vae"])
    return int(plan.scalars["height"]) // size, int(plan.scalars["width"]) // size


def _pixels_per_token(vae: Any) -> int:
    return 1 << len(vae.config.block_out_channels)


def _unscaled(vae: Any, latent_BCHW: Tensor) -> Tensor:
    """From the transformer's scale to the VAE's, in the pipeline's order of operations."""
    mean = vae.bn.running_mean.view(1, -1, 1, 1).to(latent_BCHW.device, latent_BCHW.dtype)
    std = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps)
    unscaled: Tensor = latent_BCHW * std.to(latent_BCHW.device, latent_BCHW.dtype) + mean
    return unscaled


BODIES: Mapping[str, StepBody] = {"encode_text": encode_text, "denoise": denoise, "decode_vae": decode_vae}
