"""Wan checkpoints beside that of text to video: from an image, and with an expert for high and for low noise."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from tests.parity import tiny

SCHEDULERS = {"unipc": tiny.unipc, "euler": tiny.euler}


def image_encoder() -> Any:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, image_size=32, patch_size=16
    )
    return CLIPVisionModel(config)


def image_processor() -> Any:
    from transformers import CLIPImageProcessorPil

    return CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


@cache
def from_image(scheduler: str = "unipc") -> Path:
    """Wan 2.1 I2V: the transformer also attends to what CLIP sees in the image."""
    from diffusers import WanImageToVideoPipeline

    torch.manual_seed(0)
    folder = Path(mkdtemp(prefix="tiny-wan-i2v-"))
    WanImageToVideoPipeline(
        tiny.tokenizer(),
        tiny.text_encoder(),
        tiny.wan_vae(),
        SCHEDULERS[scheduler](),
        image_processor(),
        image_encoder(),
        tiny.wan_transformer(in_channels=36, image_dim=32, added_kv_proj_dim=32),
    ).save_pretrained(folder)
    return folder


@cache
def experts(scheduler: str = "unipc") -> Path:
    """Wan 2.2 A14B, text to video."""
    from diffusers import WanPipeline

    torch.manual_seed(0)
    folder = Path(mkdtemp(prefix="tiny-wan-a14b-"))
    WanPipeline(
        tiny.tokenizer(),
        tiny.text_encoder(),
        tiny.wan_vae(),
        SCHEDULERS[scheduler](12.0),
        tiny.wan_transformer(),
        tiny.wan_transformer(),
        boundary_ratio=0.875,
    ).save_pretrained(folder)
    return folder


@cache
def experts_from_image(scheduler: str = "unipc") -> Path:
    """Wan 2.2 A14B from an image, which no transformer attends to."""
    from diffusers import WanImageToVideoPipeline

    torch.manual_seed(0)
    folder = Path(mkdtemp(prefix="tiny-wan-i2v-a14b-"))
    WanImageToVideoPipeline(
        tiny.tokenizer(),
        tiny.text_encoder(),
        tiny.wan_vae(),
        SCHEDULERS[scheduler](5.0),
        transformer=tiny.wan_transformer(in_channels=36),
        transformer_2=tiny.wan_transformer(in_channels=36),
        boundary_ratio=0.9,
    ).save_pretrained(folder)
    return folder
