"""The codec's training: a principal component projection, then a decoder that draws clean outlines over it."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cards.shapes.model import Codec, Encoder
from training.shapes.data import FRAMES, FRAMES_PER_LATENT, PALETTE, Clip, coverage, render, stream

LATENT_NOISE = 0.25  # standard deviation, at most, of the noise that the decoder learns to see through


@torch.no_grad()
def fit_projection(codec: Codec, *, seed: int, clips: int = 192) -> None:
    """Set the encoder, and the projection in the decoder, to the principal components of true patches.

    Every component is divided by the square root of its deviation, so that faint ones keep a weight without being as
    loud as the strong ones; then all by one number, so that the latent's variance is one.
    """
    source = stream(seed, continued=0.5)
    frames = torch.from_numpy(np.stack([render(next(source)) for _ in range(clips)]))
    patches = codec.encoder.patches(frames).flatten(0, -2)
    mean = patches.mean(dim=0)
    covariance = (patches - mean).T @ (patches - mean) / len(patches)
    variance, basis = torch.linalg.eigh(covariance.double())
    channels = codec.encoder.project.out_features
    deviation, basis = variance[-channels:].flip(0).sqrt().float(), basis[:, -channels:].flip(1).float()
    scale = deviation.rsqrt() / deviation.mean().sqrt()

    encoder, decoder = codec.encoder.project, codec.decoder.project
    encoder.weight.copy_((basis * scale).T.half())  # as shipped, so that training sees what serving does
    encoder.bias.copy_((-mean @ (basis * scale)).half())
    decoder.weight.copy_((basis / scale).half())
    decoder.bias.copy_(mean.half())


def fit_decoder_step(codec: Codec, optimizer: torch.optim.Optimizer, rng: np.random.Generator, *, batch: int) -> float:
    """One step on the mean absolute error of latent frames, each from another clip and each with its own noise."""
    frames_BTHWC = torch.from_numpy(np.stack([_latent_frame(rng) for _ in range(batch)]))
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    with torch.no_grad():
        latent_BC1HW = codec.encoder(frames_BTHWC)
        level = LATENT_NOISE * torch.rand(batch, 1, 1, 1, 1, generator=generator)
        latent_BC1HW = latent_BC1HW + level * torch.randn(latent_BC1HW.shape, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        decoded_BTHWC = codec.decoder.draw(latent_BC1HW)
    loss = functional.l1_loss(decoded_BTHWC, frames_BTHWC)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(codec.decoder.parameters(), 1.0)
    optimizer.step()
    return loss.item()


@torch.no_grad()
def encode_clips(encoder: Encoder, clips: list[Clip]) -> Tensor:
    """Latents (B, C, F, H, W), equal to `encoder(render(clip))`.

    A frame is background + coverage * (colour - background), and the encoder is linear: projecting the coverage with
    weights that are mixed for the clip's colour takes a third of the work.
    """
    names = [(clip.scene.background, clip.scene.colour) for clip in clips]
    colours_B2R = torch.tensor([[PALETTE[name] for name in pair] for pair in names]) / 255
    background_BR, change_BR = colours_B2R[:, 0], colours_B2R[:, 1] - colours_B2R[:, 0]
    alpha_BTHW1 = torch.from_numpy(np.stack([coverage(clip.scene.shape, clip.path) for clip in clips]))[..., None]
    alpha_BFHWP = encoder.patches(alpha_BTHW1)
    weight_CPR = encoder.project.weight.unflatten(1, (-1, 3))
    mixed_BPC = torch.einsum("cpr,br->bpc", weight_CPR, change_BR)
    flat_BC = background_BR @ weight_CPR.sum(1).T + encoder.project.bias
    latent_BNC = alpha_BFHWP.flatten(1, 3) @ mixed_BPC + flat_BC[:, None]
    latent_BFHWC: Tensor = latent_BNC.unflatten(1, alpha_BFHWP.shape[1:4])
    return latent_BFHWC.permute(0, 4, 1, 2, 3)


def _latent_frame(rng: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The frames of one latent frame of a clip."""
    clip = next(stream(int(rng.integers(2**62)), continued=0.5))
    first = FRAMES_PER_LATENT * int(rng.integers(FRAMES // FRAMES_PER_LATENT))
    return render(Clip(clip.scene, clip.path[first : first + FRAMES_PER_LATENT]))
