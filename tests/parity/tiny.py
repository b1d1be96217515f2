"""Random checkpoints of a few kilobytes, written by the libraries' own `save_pretrained`: offline, in a second."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,'!?-"


def tokenizer() -> Any:
    from transformers import T5Tokenizer

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in LETTERS)]
    return T5Tokenizer(vocab=pieces, extra_ids=0)


def text_encoder() -> Any:
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
        relative_attention_max_distance=32, dropout_rate=0.0, feed_forward_proj="gated-gelu", pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    return UMT5EncoderModel(config)


def wan_transformer(**changes: Any) -> Any:
    from diffusers import WanTransformer3DModel

    config = {
        "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 16,
        "out_channels": 16, "text_dim": 32, "freq_dim": 256, "ffn_dim": 32, "num_layers": 2, "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 32,
    }  # fmt: skip
    return WanTransformer3DModel(**config | changes)


def wan_vae() -> Any:
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )


def unipc(shift: float = 3.0) -> Any:
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift, solver_order=2
    )


def euler(shift: float = 3.0) -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(shift=shift)


@cache
def wan(scheduler: str = "unipc") -> Path:
    """A Wan 2.1 text-to-video checkpoint."""
    from diffusers import WanPipeline

    torch.manual_seed(0)
    folder = Path(mkdtemp(prefix="tiny-wan-"))
    made = {"unipc": unipc, "euler": euler}[scheduler]()
    WanPipeline(tokenizer(), text_encoder(), wan_vae(), made, wan_transformer()).save_pretrained(folder)
    return folder
