"""The step bodies of Wan-causal. Shapes as in cards/wan/steps.py and cards/wan_causal/forward.py.

Latents are of the transformer's precision, as in the published loop; the arithmetic between two forwards is not.
"""

from collections.abc import Mapping

import torch
from diffusers import WanPipeline
from torch import Tensor

from cards import media, pack
from cards.family import Artifact, Components, Made, Reads, StepBody
from cards.sampling import noise, noise_seed
from cards.wan.card import TEXT_TOKENS, scale_of
from cards.wan.forward import weight_of
from cards.wan.steps import decode_frames, render
from cards.wan_causal.card import DENOISING_STEPS
from cards.wan_causal.forward import KeysValues, forward
from cards.wan_causal.window import CHUNK, visible
from cards.wire import WorkPlan

TABLE = 1000


def encode_text(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """The prompt to (1, L, D), cleaned, padded and masked as the pipeline does it."""
    pipeline = WanPipeline(components["tokenizer"], components["text_encoder"], vae=None, scheduler=None)
    text, _ = pipeline.encode_prompt(
        str(plan.scalars["prompt"]), do_classifier_free_guidance=False, max_sequence_length=TEXT_TOKENS
    )
    return Made({"text": text})


def denoise(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """A chunk of noise to what the student takes for data, and, but at the last step, back to the next noise level."""
    index, sigmas = int(plan.scalars["index"]), levels(float(plan.scalars["shift"]))
    x = reads["x"] if index else _noise(components, plan, 0)
    velocity, _ = _forward(components, plan, reads, x, sigmas[index] * TABLE)
    data = (x.double() - sigmas[index].double() * velocity.double()).to(x.dtype)
    if index + 1 == len(DENOISING_STEPS):
        return Made({f"latent/{plan.scalars['chunk']}": data})
    again, sigma = _noise(components, plan, index + 1), sigmas[index + 1]
    return Made({"x": ((1 - sigma) * data.float() + sigma * again.float()).to(x.dtype)})


def context(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """The keys and values of a clean chunk, at time 0: (layers, 2, B, L, N, D / N)."""
    chunk = int(plan.scalars["chunk"])
    _, made = _forward(components, plan, reads, reads[f"latent/{chunk}"], torch.zeros(()))
    return Made({f"kv/{chunk}": torch.stack([torch.stack(one) for one in made])})


def decode(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """A chunk to its frames, uint8 (T, H', W', 3), and to a clip of its own, unless an earlier job has shown it."""
    chunk = int(plan.scalars["chunk"])
    vae = components["vae"]
    cache = pack.unpack(reads["cache"], str(vae.device)) if chunk else None
    parts, cache = decode_frames(vae, reads[f"latent/{chunk}"], slice(None), cache)
    frames = torch.cat(parts)
    shown = chunk < int(plan.scalars["past"])
    clip = () if shown else (_clip(chunk, frames, int(plan.scalars["fps"])),)
    derived = {"cache": pack.pack(cache)} if "cache" in (plan.writes or ()) else {}
    return Made({f"frames/{chunk}": frames} | derived, artifacts=clip)


def levels(shift: float) -> Tensor:
    """The noise levels of the denoising steps, float32: a table of 1000 from 1 to 0 is shifted and then looked up in.

    As Self-Forcing's FlowMatchScheduler (utils/scheduler.py: sigma_min 0, extra_one_step) with warp_denoising_step.
    """
    even = torch.linspace(1.0, 0.0, TABLE + 1)[:-1]
    return (shift * even / (1 + (shift - 1) * even))[[TABLE - step for step in DENOISING_STEPS]]


def past_of(keys_values: Mapping[int, Tensor], chunk: int, window: int, sink: int) -> list[Tensor]:
    """Those of the frames that a chunk attends to, oldest first, out of those of whole chunks."""
    tokens = {one: kv.shape[3] // CHUNK for one, kv in keys_values.items()}
    frames = [divmod(frame, CHUNK) for frame in visible(chunk, window, sink)]
    return [keys_values[one][:, :, :, index * tokens[one] : (index + 1) * tokens[one]] for one, index in frames]


def _forward(
    components: Components, plan: WorkPlan, reads: Reads, latent: Tensor, timestep: Tensor
) -> tuple[Tensor, list[KeysValues]]:
    transformer, scalars = components["transformer"], plan.scalars
    chunk = int(scalars["chunk"])
    kept = {int(name.removeprefix("kv/")): tensor for name, tensor in reads.items() if name.startswith("kv/")}
    past = past_of(kept, chunk, int(scalars["window"]), int(scalars["sink"]))
    text = reads["text"].to(weight_of(transformer).dtype)
    return forward(transformer, latent, timestep.expand(1).to(latent.device), text, past, chunk * CHUNK)


def _noise(components: Components, plan: WorkPlan, index: int) -> Tensor:
    """(B, C, F, H, W): what the chunk starts from, or is mixed with before step `index`."""
    scalars = plan.scalars
    space, _ = scale_of(components["vae"].config)
    transformer = components["transformer"]
    shape = (
        1,
        transformer.config.in_channels,
        CHUNK,
        int(scalars["height"]) // space,
        int(scalars["width"]) // space,
    )
    seed = noise_seed(int(scalars["seed"]), loop="rollout", step=int(scalars["chunk"]), purpose=f"noise/{index}")
    return noise(shape, seed).to(weight_of(transformer))


def _clip(chunk: int, frames: Tensor, fps: int) -> Artifact:
    return Artifact(f"segment-{chunk:03d}.mp4", "video/mp4", media.mp4(frames.numpy(), fps=fps))


BODIES: Mapping[str, StepBody] = {
    "encode_text": encode_text,
    "denoise": denoise,
    "context": context,
    "decode": decode,
    "render": render,
}
