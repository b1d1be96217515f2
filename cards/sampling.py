"""Sampling maths that loops share: noise, flow-matching schedules, Euler, classifier-free guidance.

Everything is a pure function. Torch is touched only inside the functions that take or make tensors.
"""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def noise_seed(seed: int, *, loop: str, step: int, purpose: str) -> int:
    """The generator's seed for one draw, in [0, 2^63).

    Keyed by what the draw is for and never by its place in a batch or a history, so that a resumed, forked or batched
    job draws the same.
    """
    text = f"{seed}/{loop}/{step}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def noise(shape: tuple[int, ...], seed: int) -> "torch.Tensor":
    """Standard normal float32 on the CPU, whatever the device of the model: devices draw differently."""
    import torch

    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32)


def flow_time(step: int, steps: int, shift: float) -> float:
    """Time before step `step` of `steps`, from 1 (noise) to 0 (data).

    The shift of Esser et al. 2024 (Stable Diffusion 3, eq. 23): t' = s t / (1 + (s - 1) t).
    """
    t = 1.0 - step / steps
    return shift * t / (1.0 + (shift - 1.0) * t)


def euler(latent: "torch.Tensor", velocity: "torch.Tensor", t: float, next_t: float) -> "torch.Tensor":
    """One Euler step of dx/dt = v along the flow, from time `t` to `next_t`."""
    return latent + (next_t - t) * velocity


def data_estimate(latent: "torch.Tensor", velocity: "torch.Tensor", t: float) -> "torch.Tensor":
    """What the flow at time `t` says the data is: x_0 = x_t - t v, for x_t = (1 - t) x_0 + t noise."""
    return latent - t * velocity


def guide(conditional: "torch.Tensor", unconditional: "torch.Tensor", guidance: float) -> "torch.Tensor":
    """Classifier-free guidance (Ho and Salimans 2022): u + g (c - u)."""
    return unconditional + guidance * (conditional - unconditional)
