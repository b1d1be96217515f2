"""Checkpoint directories of published models without their weights: configs, and headers over holes.

The modules are the libraries' own, on tensors without data.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.holes import safetensors

Modules = dict[str, Any]

WAN = ("diffusers", "WanPipeline", {"scheduler": "UniPCMultistepScheduler", "tokenizer": "T5Tokenizer"})
LTX2 = ("ltx2", "LTX2Pipeline", {"scheduler": "FlowMatchEulerDiscreteScheduler", "tokenizer": "GemmaTokenizer"})
FLUX2 = (
    "diffusers",
    "Flux2KleinPipeline",
    {"scheduler": "FlowMatchEulerDiscreteScheduler", "tokenizer": "Qwen2TokenizerFast"},
)


@cache
def wan() -> Modules:
    """Wan 2.1 T2V 1.3B."""
    from diffusers import AutoencoderKLWan, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    return _empty(
        text_encoder=lambda: UMT5EncoderModel(
            UMT5Config(
                vocab_size=256384, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64,
                feed_forward_proj="gated-gelu",
            )
        ),
        transformer=lambda: WanTransformer3DModel(
            num_attention_heads=12, attention_head_dim=128, ffn_dim=8960, num_layers=30
        ),
        vae=AutoencoderKLWan,
    )  # fmt: skip


@cache
def ltx2() -> Modules:
    """LTX-2 19B with its upsampler. Its configs are the defaults of diffusers' classes, but for what its VAE says."""
    from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video, LTX2VideoTransformer3DModel
    from diffusers.pipelines.ltx2 import LTX2LatentUpsamplerModel, LTX2TextConnectors, LTX2Vocoder

    return _empty(
        text_encoder=_gemma,
        connectors=LTX2TextConnectors,
        transformer=LTX2VideoTransformer3DModel,
        vae=lambda: AutoencoderKLLTX2Video(spatial_compression_ratio=32, temporal_compression_ratio=8),
        audio_vae=AutoencoderKLLTX2Audio,
        vocoder=LTX2Vocoder,
        latent_upsampler=LTX2LatentUpsamplerModel,
    )


@cache
def vocoder_of_ltx2_3() -> Modules:
    from diffusers.pipelines.ltx2 import LTX2VocoderWithBWE

    return _empty(vocoder=LTX2VocoderWithBWE)


@cache
def flux2() -> Modules:
    """FLUX.2 klein 4B."""
    from diffusers import AutoencoderKLFlux2, Flux2Transformer2DModel
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _empty(
        text_encoder=lambda: Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
            )
        ),
        transformer=lambda: Flux2Transformer2DModel(
            num_layers=5, num_single_layers=20, num_attention_heads=24, joint_attention_dim=7680, guidance_embeds=False
        ),
        vae=AutoencoderKLFlux2,
    )  # fmt: skip


def _gemma() -> Any:
    """Gemma 3 12B, with the eyes that LTX-2 does not use."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

    text = Gemma3TextConfig(
        vocab_size=262208, hidden_size=3840, intermediate_size=15360, num_hidden_layers=48, num_attention_heads=16,
        num_key_value_heads=8, head_dim=256, sliding_window=1024,
    )  # fmt: skip
    vision = SiglipVisionConfig(
        hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, image_size=896,
        patch_size=14,
    )  # fmt: skip
    return Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision))


def _empty(**classes: Callable[[], Any]) -> Modules:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            return {name: made().eval() for name, made in classes.items()}
    finally:
        torch.set_default_dtype(before)


def write(folder: Path, modules: Modules, pipeline: tuple[str, str, Mapping[str, str]], **settings: Any) -> Path:
    """`settings` are entries of the model index."""
    library, name, others = pipeline
    index: dict[str, Any] = {"_class_name": name, **settings}
    for part, module in modules.items():
        (folder / part).mkdir(parents=True)
        index[part] = [_library(module, library), type(module).__name__]
        _config(module, folder / part)
        transformers = index[part][0] == "transformers"
        file = "model.safetensors" if transformers else "diffusion_pytorch_model.safetensors"
        safetensors(folder / part / file, {key: ("BF16", shape) for key, shape in _shapes(module).items()})
    for part, kind in others.items():
        (folder / part).mkdir()
        index[part] = ["transformers" if part == "tokenizer" else "diffusers", kind]
        (folder / part / f"{part}_config.json").write_text("{}")
        if part == "tokenizer":
            (folder / part / "vocab.json").write_text("{}")
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def _library(module: Any, pipelines: str) -> str:
    path = type(module).__module__
    return pipelines if ".pipelines." in path else path.partition(".")[0]


def _config(module: Any, folder: Path) -> None:
    if hasattr(module, "save_config"):
        module.save_config(folder)
    else:
        module.config.save_pretrained(folder)


def _shapes(module: Any) -> dict[str, list[int]]:
    """What would be saved: of weights that are tied, one."""
    tied = {name for name, _ in module.named_parameters(remove_duplicate=False)} - {
        name for name, _ in module.named_parameters()
    }
    return {key: list(tensor.shape) for key, tensor in module.state_dict().items() if key not in tied}
