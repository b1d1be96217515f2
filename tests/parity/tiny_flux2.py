"""A random Flux 2 klein checkpoint: 27 layers of text encoder, of which the pipeline reads the 9th, 18th and 27th."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

CHAT = "{% for message in messages %}<|im_start|>{{ message['role'] }} {{ message['content'] }}<|im_end|>{% endfor %}"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tokenizer() -> Any:
    """Byte by byte, as Qwen's without any merges."""
    from transformers import Qwen2TokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    pieces = [*bytes_to_unicode().values(), *SPECIAL]
    made = Qwen2TokenizerFast(
        vocab={piece: number for number, piece in enumerate(pieces)},
        merges=[],
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
    )
    made.chat_template = CHAT
    return made


def text_encoder() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=272, hidden_size=16, intermediate_size=32, num_hidden_layers=27, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def transformer() -> Any:
    from diffusers import Flux2Transformer2DModel

    return Flux2Transformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=48, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=False,
    )  # fmt: skip


def vae() -> Any:
    """Two pixels to a latent and two latents to a token. The statistics of its batch norm are what training leaves."""
    from diffusers import AutoencoderKLFlux2

    made = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 16), layers_per_block=1, latent_channels=4, norm_num_groups=4, sample_size=32,
    )  # fmt: skip
    made.bn.running_mean.normal_()
    made.bn.running_var.uniform_(0.5, 2.0)
    return made


@cache
def flux2(distilled: bool = False) -> Path:
    from diffusers import FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline

    torch.manual_seed(0)
    folder = Path(mkdtemp(prefix="tiny-flux2-"))
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    Flux2KleinPipeline(
        scheduler, vae(), text_encoder(), tokenizer(), transformer(), is_distilled=distilled
    ).save_pretrained(folder)
    return folder
