"""A random LTX-2 or LTX-2.3 checkpoint, its upsampler beside it."""

import string
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

NEW = {
    "gated_attn": True, "cross_attn_mod": True, "audio_gated_attn": True, "audio_cross_attn_mod": True,
    "perturbed_attn": True, "use_prompt_embeddings": False,
}  # fmt: skip
NEW_CONNECTORS = {
    "per_modality_projections": True, "video_hidden_dim": 32, "audio_hidden_dim": 16, "proj_bias": True,
    "video_gated_attn": True, "audio_gated_attn": True, "video_connector_attention_head_dim": 8,
    "audio_connector_attention_head_dim": 4,
}  # fmt: skip


def tokenizer() -> Any:
    from transformers import GemmaTokenizer

    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    vocab = {piece: index for index, piece in enumerate((*pieces, *string.ascii_lowercase))}
    made = GemmaTokenizer(vocab=vocab, merges=[])
    made.model_max_length = 64
    return made


def text_encoder() -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

    text = Gemma3TextConfig(
        vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, sliding_window=64, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16
    )
    config = Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=300, boi_token_index=301,
        eoi_token_index=302,
    )  # fmt: skip
    return Gemma3ForConditionalGeneration(config)


def transformer(**changes: Any) -> Any:
    from diffusers import LTX2VideoTransformer3DModel

    config = {
        "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16,
        "cross_attention_dim": 32, "audio_in_channels": 4, "audio_out_channels": 4, "audio_num_attention_heads": 2,
        "audio_attention_head_dim": 8, "audio_cross_attention_dim": 16, "num_layers": 2, "caption_channels": 32,
        "rope_double_precision": False, "rope_type": "split",
    }  # fmt: skip
    return LTX2VideoTransformer3DModel(**config | changes)


def connectors(**changes: Any) -> Any:
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    config = {
        "caption_channels": 32, "text_proj_in_factor": 3, "video_connector_num_attention_heads": 4,
        "video_connector_attention_head_dim": 8, "video_connector_num_layers": 1,
        "video_connector_num_learnable_registers": None, "audio_connector_num_attention_heads": 4,
        "audio_connector_attention_head_dim": 8, "audio_connector_num_layers": 1,
        "audio_connector_num_learnable_registers": None, "connector_rope_base_seq_len": 32,
        "rope_double_precision": False, "rope_type": "split",
    }  # fmt: skip
    return LTX2TextConnectors(**config | changes)


def vae() -> Any:
    """32 pixels and 8 frames a latent, as the published one."""
    from diffusers import AutoencoderKLLTX2Video

    made = AutoencoderKLLTX2Video(
        latent_channels=4, block_out_channels=(8, 8, 8), decoder_block_out_channels=(8, 8, 8),
        down_block_types=("LTX2VideoDownBlock3D",) * 3, layers_per_block=(1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1), spatio_temporal_scaling=(True, True, True),
        decoder_spatio_temporal_scaling=(True, True, True), decoder_inject_noise=(False,) * 4,
        downsample_type=("spatiotemporal",) * 3, upsample_residual=(False,) * 3, upsample_factor=(1, 1, 1),
        encoder_causal=True, decoder_causal=False,
    )  # fmt: skip
    _vary(made)
    return made


def audio_vae() -> Any:
    from diffusers import AutoencoderKLLTX2Audio

    made = AutoencoderKLLTX2Audio(
        base_channels=4, output_channels=2, ch_mult=(1,), num_res_blocks=1, attn_resolutions=None, in_channels=2,
        resolution=32, latent_channels=2, norm_type="pixel", causality_axis="height", mel_bins=8,
    )  # fmt: skip
    _vary(made)
    return made


def _vary(vae: Any) -> None:
    """Statistics that a forgotten or repeated scaling cannot hide behind."""
    vae.latents_mean.uniform_(-0.5, 0.5)
    vae.latents_std.uniform_(0.5, 2.0)


def vocoder() -> Any:
    from diffusers.pipelines.ltx2 import LTX2Vocoder

    return LTX2Vocoder(
        in_channels=16, hidden_channels=32, upsample_kernel_sizes=[4, 4], upsample_factors=[2, 2],
        resnet_kernel_sizes=[3], resnet_dilations=[[1, 3, 5]], output_sampling_rate=16_000,
    )  # fmt: skip


def upsampler(**changes: Any) -> Any:
    from diffusers.pipelines.ltx2 import LTX2LatentUpsamplerModel

    return LTX2LatentUpsamplerModel(in_channels=4, mid_channels=32, num_blocks_per_stage=1, **changes)


def scheduler() -> Any:
    """As it is published: its own levels are shifted by the number of tokens."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.95, max_shift=2.05, base_image_seq_len=1024,
        max_image_seq_len=4096, shift_terminal=0.1,
    )  # fmt: skip


@cache
def ltx2(version: str) -> Path:
    """Of version 2.0 or 2.3."""
    from diffusers import LTX2Pipeline

    torch.manual_seed(0)
    folder = Path(mkdtemp(prefix="tiny-ltx2-"))
    new = version == "2.3"
    LTX2Pipeline(
        scheduler=scheduler(),
        vae=vae(),
        audio_vae=audio_vae(),
        text_encoder=text_encoder(),
        tokenizer=tokenizer(),
        connectors=connectors(**NEW_CONNECTORS if new else {}),
        transformer=transformer(**NEW if new else {}),
        vocoder=vocoder(),
    ).save_pretrained(folder)
    upsampler().save_pretrained(folder / "latent_upsampler")
    return folder


def without(folder: Path, part: str) -> Path:
    """The same checkpoint, as links, without one of its parts."""
    copy = Path(mkdtemp(prefix="tiny-ltx2-"))
    for entry in folder.iterdir():
        if entry.name != part:
            (copy / entry.name).symlink_to(entry)
    return copy
