"""A Wan 2.1 checkpoint with random weights, of any size: all of the code and none of the pictures."""

from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def save(folder: Path, layers: int, heads: int) -> None:
    """Write it as the published ones lie: WanPipeline.save_pretrained."""
    import torch
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
    from transformers import T5Tokenizer, UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in LETTERS)]
    text_encoder = UMT5Config(
        vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0,
    )  # fmt: skip
    WanPipeline(
        T5Tokenizer(vocab=pieces, extra_ids=0),
        UMT5EncoderModel(text_encoder),
        AutoencoderKLWan(
            base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
        ),
        UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
        WanTransformer3DModel(
            num_attention_heads=heads, attention_head_dim=32, text_dim=32, ffn_dim=heads * 128, num_layers=layers,
            rope_max_seq_len=64,
        ),
    ).save_pretrained(folder)  # fmt: skip
