"""The step bodies of LTX-2. What the reference pipeline computes in methods of its own is asked of those methods.

B batch, S tokens, D width, C latent channels, F latent frames, H W latent height and width, L audio latents, M mel
bins per latent, T frames, H' W' pixels, A audio channels, N samples.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from diffusers import LTX2Pipeline
from diffusers.pipelines.ltx2.pipeline_ltx2 import calculate_shift
from torch import Tensor

from cards import media
from cards.family import Artifact, Asking, Components, Made, Reads, StepBody
from cards.forward import Forward, Outputs
from cards.ltx2 import guidance
from cards.ltx2.card import TEXT_TOKENS
from cards.solvers import SOLVERS, begun
from cards.wire import WorkPlan

PARTS = ("scheduler", "vae", "audio_vae", "text_encoder", "tokenizer", "connectors", "transformer", "vocoder")


class VideoGrid(NamedTuple):
    """How many latents a video has."""

    frames: int
    height: int
    width: int


class AudioGrid(NamedTuple):
    """How many latents a sound has, and mel bins of each."""

    length: int
    bins: int


def encode_text(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """What the connectors make of the prompts, (B, S, D) for each modality: without the negative one, or after it."""
    pipeline = _pipeline(components, "tokenizer", "text_encoder")
    negative = bool(plan.scalars["negative"])
    text, mask, negative_text, negative_mask = pipeline.encode_prompt(
        str(plan.scalars["prompt"]),
        str(plan.scalars["negative_prompt"]),
        do_classifier_free_guidance=negative,
        max_sequence_length=min(TEXT_TOKENS, pipeline.tokenizer.model_max_length),
    )
    if negative:
        text, mask = torch.cat([negative_text, text]), torch.cat([negative_mask, mask])
    video, audio, mask = components["connectors"](text, mask, padding_side=pipeline.tokenizer.padding_side)
    return Made({"text": video, "audio_text": audio, "mask": mask})


def denoise(components: Components, plan: WorkPlan, reads: Reads) -> Asking:
    """One Euler step of both modalities, packed and float32: `latent` (B, S, C), `audio` (B, L, C M)."""
    pipeline = _pipeline(components, "transformer", "vae", "audio_vae")
    state = dict(reads) if plan.step else {**reads, **_begin(pipeline, plan, reads)}
    samples = {"video": state["latent"], "audio": state["audio"]}
    scheduler = _scheduler(components["scheduler"], plan, tokens=state["latent"].shape[1])
    t = scheduler.timesteps[plan.step].to(state["latent"].device)
    forwards = _forwards(pipeline, plan, reads, samples, t)
    velocities = _velocities((yield forwards), forwards["prompted"].count)
    moved = {}
    for modality, scale in guidance.scales(plan.scalars).items():
        sample = samples[modality]
        estimates = {
            name: pipeline.convert_velocity_to_x0(sample, one[modality].float(), plan.step, scheduler)
            for name, one in velocities.items()
        }
        guided = guidance.combine(estimates.pop("prompted"), estimates, scale)
        velocity = pipeline.convert_x0_to_velocity(sample, guided, plan.step, scheduler)
        moved[modality] = SOLVERS["euler"].advance(scheduler, plan.step, sample, velocity, {})["latent"]
    state |= {"latent": moved["video"], "audio": moved["audio"]}
    return Made({name: state[name] for name in plan.writes or ()})


def upsample(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """A stage's result as LTX2Pipeline hands it on, `latent` (B, C, F, H, W) after the upsampler, `audio` (B, C, L, M).

    The upsampler works on the VAE's scale.
    """
    pipeline, upsampler = _pipeline(components, "vae", "audio_vae"), components["latent_upsampler"]
    latent = _to_vae(pipeline, _unpacked(pipeline, plan, reads["latent"]))
    return Made(
        {"latent": upsampler(latent.to(upsampler.dtype)), "audio": _to_audio_vae(pipeline, plan, reads["audio"])}
    )


def decode_video(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """All frames at once, uint8 (T, H', W', 3): the decoder looks both ways in time."""
    pipeline, vae = _pipeline(components, "vae"), components["vae"]
    latent = _to_vae(pipeline, _unpacked(pipeline, plan, reads["latent"]).to(vae.dtype))
    # The pipeline's own decode_timestep is 0, which adds no noise.
    timestep = torch.zeros(1, device=latent.device, dtype=latent.dtype) if vae.config.timestep_conditioning else None
    video = vae.decode(latent, timestep, return_dict=False)[0]
    [frames] = pipeline.video_processor.postprocess_video(video, output_type="np")
    return Made({"frames": torch.from_numpy((frames * 255).round().astype(np.uint8, order="C"))})


def decode_audio(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    """The sound, float32 (A, N), from -1 to 1."""
    pipeline, audio_vae = _pipeline(components, "audio_vae"), components["audio_vae"]
    latent = _to_audio_vae(pipeline, plan, reads["audio"]).to(audio_vae.dtype)
    [waveform] = components["vocoder"](audio_vae.decode(latent, return_dict=False)[0])
    return Made({"waveform": waveform.float()})


def render(components: Components, plan: WorkPlan, reads: Reads) -> Made:
    frames = reads["frames"].numpy()
    sound = media.Sound(media.pcm(reads["waveform"].cpu().numpy()), rate=int(plan.scalars["sample_rate"]))
    sheet = media.contact_sheet(frames[:: max(1, len(frames) // 12)], columns=4)
    return Made(
        artifacts=(
            Artifact("video.mp4", "video/mp4", media.mp4(frames, fps=int(plan.scalars["fps"]), sound=sound)),
            Artifact("audio.wav", "audio/wav", media.wav(sound)),
            Artifact("contact_sheet.png", "image/png", sheet),
        )
    )


def _begin(pipeline: Any, plan: WorkPlan, reads: Reads) -> dict[str, Tensor]:
    """Noise, or what an earlier stage made with noise over it: video first, then audio, from one generator."""
    generator = torch.Generator()
    if "generator" in reads:
        generator.set_state(reads["generator"])
    else:
        generator.manual_seed(int(plan.scalars["seed"]))
    latent, audio = reads.get("latent"), reads.get("audio")
    about = {
        "noise_scale": 0.0 if latent is None else _sigmas(plan)[0],
        "dtype": torch.float32,
        "device": pipeline.transformer.device,
        "generator": generator,
    }
    sizes = {name: int(plan.scalars[name]) for name in ("height", "width")}
    return {
        "latent": pipeline.prepare_latents(
            num_channels_latents=pipeline.transformer.config.in_channels,
            num_frames=int(plan.scalars["frames"]),
            latents=latent,
            **sizes,
            **about,
        ),
        "audio": pipeline.prepare_audio_latents(
            num_channels_latents=pipeline.audio_vae.config.latent_channels,
            audio_latent_length=_audio_grid(pipeline, plan).length,
            num_mel_bins=pipeline.audio_vae.config.mel_bins,
            latents=audio,
            **about,
        ),
        "generator": generator.get_state(),
    }


def _forwards(
    pipeline: Any, plan: WorkPlan, reads: Reads, samples: Mapping[str, Tensor], t: Tensor
) -> dict[str, Forward]:
    """By branch. The first one has the prompt, and is without it too."""
    needed = guidance.branches(plan.scalars)
    count = 2 if "unprompted" in needed else 1
    forwards = {"prompted": _forward(pipeline, plan, reads, samples, t, count)}
    prompted = {name: reads[name].chunk(count)[-1] for name in ("text", "audio_text", "mask")}
    changes: dict[str, dict[str, Any]] = {
        "skipped": {"spatio_temporal_guidance_blocks": [int(plan.scalars["skipped"])]},
        "isolated": {"isolate_modalities": True},
    }
    for branch, change in changes.items():
        if branch in needed:
            forwards[branch] = _forward(pipeline, plan, prompted, samples, t, 1, **change)
    return forwards


def _velocities(made: Mapping[str, Outputs], count: int) -> dict[str, Outputs]:
    """By branch and modality, what the transformer sees. The first forward is of `count` samples."""
    first = dict(zip(("unprompted", "prompted")[-count:], _each(made["prompted"], count), strict=True))
    return first | {branch: outputs for branch, outputs in made.items() if branch not in first}


def _forward(
    pipeline: Any,
    plan: WorkPlan,
    text: Reads,
    samples: Mapping[str, Tensor],
    t: Tensor,
    count: int,
    **changes: Any,
) -> Forward:
    """Of `count` copies of the samples, each with its own text."""
    transformer, fps = pipeline.transformer, float(plan.scalars["fps"])
    grid, length = _video_grid(pipeline, plan), _audio_grid(pipeline, plan).length
    inputs = {name: (torch.cat([one] * count) if count > 1 else one) for name, one in samples.items()}
    device, dtype = inputs["video"].device, text["text"].dtype
    video_coords = transformer.rope.prepare_video_coords(1, *grid, device, fps=fps)
    audio_coords = transformer.audio_rope.prepare_audio_coords(1, length, device)
    rows = {
        "hidden_states": inputs["video"].to(dtype),
        "audio_hidden_states": inputs["audio"].to(dtype),
        "encoder_hidden_states": text["text"],
        "audio_encoder_hidden_states": text["audio_text"],
        "timestep": t.expand(count),
        "sigma": t.expand(count),
        "encoder_attention_mask": text["mask"],
        "audio_encoder_attention_mask": text["mask"],
        "video_coords": video_coords.repeat(count, *[1] * (video_coords.ndim - 1)),
        "audio_coords": audio_coords.repeat(count, *[1] * (audio_coords.ndim - 1)),
    }
    common = {
        "num_frames": grid.frames,
        "height": grid.height,
        "width": grid.width,
        "fps": fps,
        "audio_num_frames": length,
        "use_cross_timestep": bool(plan.scalars["cross_timestep"]),
        "return_dict": False,
    }
    return Forward(transformer, rows, common | changes, makes=guidance.MODALITIES)


def _each(whole: Outputs, count: int) -> list[Outputs]:
    """A batch's members."""
    parts = {name: one.chunk(count) for name, one in whole.items()}
    return [{name: one[index] for name, one in parts.items()} for index in range(count)]


def _scheduler(template: Any, plan: WorkPlan, tokens: int) -> Any:
    """At the levels that the card names, as they are; or at the scheduler's own, shifted for so many tokens."""
    if sigmas := _sigmas(plan):
        as_they_are = type(template).from_config(template.config, use_dynamic_shifting=False, shift_terminal=None)
        return begun(as_they_are, sigmas=sigmas)
    steps, config = int(plan.scalars["steps"]), template.config
    bounds = {"base_image_seq_len": 1024, "max_image_seq_len": 4096, "base_shift": 0.95, "max_shift": 2.05}
    mu = calculate_shift(tokens, *(config.get(name, default) for name, default in bounds.items()))
    return begun(template, sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)


def _sigmas(plan: WorkPlan) -> list[float]:
    return [float(one) for one in str(plan.scalars["sigmas"]).split()]


def _video_grid(pipeline: Any, plan: WorkPlan) -> VideoGrid:
    frames, height, width = (int(plan.scalars[name]) for name in ("frames", "height", "width"))
    space, time = pipeline.vae_spatial_compression_ratio, pipeline.vae_temporal_compression_ratio
    return VideoGrid((frames - 1) // time + 1, height // space, width // space)


def _audio_grid(pipeline: Any, plan: WorkPlan) -> AudioGrid:
    """As LTX2Pipeline reckons it: as long as the video."""
    seconds = int(plan.scalars["frames"]) / float(plan.scalars["fps"])
    spectrums = pipeline.audio_sampling_rate / pipeline.audio_hop_length
    return AudioGrid(
        length=round(seconds * (spectrums / float(pipeline.audio_vae_temporal_compression_ratio))),
        bins=pipeline.audio_vae.config.mel_bins // pipeline.audio_vae_mel_compression_ratio,
    )


def _unpacked(pipeline: Any, plan: WorkPlan, latent_BSC: Tensor) -> Tensor:
    unpacked: Tensor = pipeline._unpack_latents(latent_BSC, *_video_grid(pipeline, plan))
    return unpacked


def _to_vae(pipeline: Any, latent_BCFHW: Tensor) -> Tensor:
    """From the transformer's scale to the VAE's."""
    vae = pipeline.vae
    scaled: Tensor = pipeline._denormalize_latents(
        latent_BCFHW, vae.latents_mean, vae.latents_std, vae.config.scaling_factor
    )
    return scaled


def _to_audio_vae(pipeline: Any, plan: WorkPlan, audio: Tensor) -> Tensor:
    """From the transformer's scale and (B, L, C M) to the VAE's and (B, C, L, M)."""
    audio_vae = pipeline.audio_vae
    scaled = pipeline._denormalize_audio_latents(audio, audio_vae.latents_mean, audio_vae.latents_std)
    unpacked: Tensor = pipeline._unpack_audio_latents(scaled, *_audio_grid(pipeline, plan))
    return unpacked


def _pipeline(components: Components, *names: str) -> Any:
    """The reference pipeline with some of its modules, for its methods."""
    return LTX2Pipeline(**{name: components[name] if name in names else None for name in PARTS})


BODIES: Mapping[str, StepBody] = {
    "encode_text": encode_text,
    "base": denoise,
    "refine": denoise,
    "denoise": denoise,
    "upsample": upsample,
    "decode_video": decode_video,
    "decode_audio": decode_audio,
    "render": render,
}
