"""Guidance of two modalities at once, as LTX2Pipeline has it: up to four estimates of each, combined as data (x_0).

Only the estimates with and without the prompt come out of one forward, of a batch of two; another grouping would give
other bits.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cards.card import ModalityGuidance
from cards.wire import Scalar

if TYPE_CHECKING:
    import torch

MODALITIES = ("video", "audio")


def scales(scalars: Mapping[str, Scalar]) -> dict[str, ModalityGuidance]:
    """By modality, from what a plan says as `video.scale` and so on."""
    fields = ModalityGuidance.__struct_fields__
    return {
        modality: ModalityGuidance(**{name: float(scalars[f"{modality}.{name}"]) for name in fields})
        for modality in MODALITIES
    }


def branches(scalars: Mapping[str, Scalar]) -> tuple[str, ...]:
    """The estimates beside the one with the prompt that either modality needs, in the order of evaluation."""
    both = scales(scalars).values()
    needed = {
        "unprompted": any(one.scale > 1 for one in both),
        "skipped": any(one.stg > 0 for one in both),
        "isolated": any(one.modality > 1 for one in both),
    }
    return tuple(name for name, is_needed in needed.items() if is_needed)


def combine(prompted: "torch.Tensor", others: "Mapping[str, torch.Tensor]", scale: ModalityGuidance) -> "torch.Tensor":
    """x + (s - 1)(x - unprompted) + stg (x - skipped) + (m - 1)(x - isolated), then rescaled (Lin et al. 2023, eq. 16).

    All are (B, S, C) in float32.
    """
    from diffusers.pipelines.ltx2.pipeline_ltx2 import rescale_noise_cfg

    weights = {"unprompted": scale.scale - 1, "skipped": scale.stg, "isolated": scale.modality - 1}
    guided = prompted
    for name, weight in weights.items():
        guided = guided + (weight * (prompted - others[name]) if name in others else 0)
    if scale.rescale <= 0:
        return guided
    rescaled: torch.Tensor = rescale_noise_cfg(guided, prompted, guidance_rescale=scale.rescale)
    return rescaled
