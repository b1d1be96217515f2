"""How large the tensors of LTX-2 are and what its steps cost, from a checkpoint's configs and headers. No torch."""

from msgspec import Struct

from cards import canvas
from cards.card import ModelCard, Precision
from cards.checkpoint import Checkpoint, Part
from cards.layers import Layers, attention, attention_of_language_model, language_model
from cards.loop import LoopContext
from cards.ltx2 import decoding_sizes as decoding
from cards.ltx2.card import TEXT_TOKENS, UPSAMPLED, UPSAMPLER, version_of
from cards.ltx2.guidance import MODALITIES, branches
from cards.ltx2.loops import guidance
from cards.request import ResolvedRequest
from cards.sizes import LoopSizes, Sized, Work, always

COPIES, ENCODER_COPIES, CONNECTOR_COPIES = 4.3, 1.0, 6.4
"""Of the widest layer of each."""

GENERATOR_BYTES = 5056
"""The state of torch's generator on a CPU."""


class Grids(Struct, frozen=True):
    """The latents of one stage: of the video (B, C, F, H, W), of the sound (B, C, L, M)."""

    video: tuple[int, int, int, int, int]
    audio: tuple[int, int, int, int]

    @property
    def tokens(self) -> tuple[int, int]:
        """Of video and sound, packed as the transformer has them."""
        _, _, frames, height, width = self.video
        return frames * height * width, self.audio[2]


def sizes(
    card: ModelCard, checkpoint: Checkpoint, precision: Precision, request: ResolvedRequest
) -> dict[str, LoopSizes]:
    parts = checkpoint.parts
    whole, small = (_grids(card, checkpoint, request, shrink) for shrink in (1, UPSAMPLED))
    estimates = branches(guidance(LoopContext(card, request, "")))
    denoising = {
        loop: _denoise(checkpoint, precision, grids, estimates)
        for loop, grids in {"base": small, "refine": whole, "denoise": whole}.items()
        if loop in card.loops
    }
    upsampling = {"upsample": decoding.upsampling(parts[UPSAMPLER], precision, small.video, small.audio)}
    return {
        "encode_text": _encode(checkpoint, precision, prompts=2 if "unprompted" in estimates else 1),
        **denoising,
        **(upsampling if "upsample" in card.loops else {}),
        "decode_video": decoding.video(parts["vae"], precision, whole.video, canvas.pixels(request, card.output)),
        "decode_audio": decoding.audio(parts["audio_vae"], parts["vocoder"], precision, whole.audio),
    }


def _grids(card: ModelCard, checkpoint: Checkpoint, request: ResolvedRequest, shrink: int) -> Grids:
    """As LTX2Pipeline reckons them: the sound is as long as the video."""
    assert card.output.canvas
    vae, sound = (checkpoint.parts[name].config() for name in ("vae", "audio_vae"))
    width, height, frames = canvas.pixels(request, card.output)
    side = decoding.pixels_per_latent(vae) * shrink
    per_second = sound["sample_rate"] / sound["mel_hop_length"] / decoding.SPECTRA_PER_LATENT
    video = ((frames - 1) // card.output.canvas.frames_multiple + 1, height // side, width // side)
    audio = (round(frames / card.output.fps * per_second), sound["mel_bins"] // decoding.BINS_PER_LATENT)
    return Grids((1, vae["latent_channels"], *video), (1, sound["latent_channels"], *audio))


def _encode(checkpoint: Checkpoint, precision: Precision, *, prompts: int) -> LoopSizes:
    """Each prompt through the text encoder, then all of them through the connectors, which read every layer of it."""
    encoder, connectors = checkpoint.parts["text_encoder"], checkpoint.parts["connectors"]
    config, about, tokens = encoder.config()["text_config"], connectors.config(), _text_tokens(checkpoint)
    heads = {name: about[f"{name}_connector_num_attention_heads"] for name in MODALITIES}
    widths = {name: heads[name] * about[f"{name}_connector_attention_head_dim"] for name in MODALITIES}
    attended = sum(about[f"{name}_connector_num_layers"] * attention(tokens, tokens, widths[name]) for name in widths)
    read, made = language_model(encoder, tokens), Layers(connectors, {"": tokens})
    activations = read.activations(ENCODER_COPIES, precision), prompts * made.activations(CONNECTOR_COPIES, precision)
    flops = read.flops + attention_of_language_model(config, tokens) + made.flops + attended
    return LoopSizes(
        tensors={
            "text": Sized((prompts, tokens, widths["video"]), precision),
            "audio_text": Sized((prompts, tokens, widths["audio"]), precision),
            "mask": Sized((prompts, tokens), "int64"),
        },
        work=always(Work(prompts * flops, max(activations))),
    )


def _text_tokens(checkpoint: Checkpoint) -> int:
    return min(TEXT_TOKENS, int(checkpoint.parts["tokenizer"].config().get("model_max_length", TEXT_TOKENS)))


def _denoise(checkpoint: Checkpoint, precision: Precision, grids: Grids, estimates: tuple[str, ...]) -> LoopSizes:
    """A forward with the prompt, which has the one without it in its batch, and one for each other estimate."""
    part, text = checkpoint.parts["transformer"], _text_tokens(checkpoint)
    skipped = version_of(checkpoint).skipped
    together = 2 if "unprompted" in estimates else 1
    work = _forward(part, precision, grids.tokens, text).in_a_batch_of(together)
    if "skipped" in estimates:
        work += _forward(part, precision, grids.tokens, text, skipped=skipped)
    if "isolated" in estimates:
        work += _forward(part, precision, grids.tokens, text, isolated=True)
    video, audio = grids.tokens
    _, channels, _, bins = grids.audio
    return LoopSizes(
        tensors={
            "latent": Sized((1, video, grids.video[1]), "float32"),
            "audio": Sized((1, audio, channels * bins), "float32"),
            "generator": Sized((GENERATOR_BYTES,), "uint8"),
        },
        work=always(work),
    )


def _forward(
    part: Part,
    precision: Precision,
    tokens: tuple[int, int],
    text: int,
    *,
    skipped: int | None = None,
    isolated: bool = False,
) -> Work:
    """Of one sample. `skipped` is a block where nothing attends to its own kind; isolated, neither hears the other."""
    video, audio = tokens
    block, across = r"transformer_blocks\.\d+\.", r"(audio_to_video|video_to_audio)_attn"
    left_out = {} if skipped is None else {rf"transformer_blocks\.{skipped}\.(audio_)?attn1\.to_[qk]": 0}
    if isolated:
        left_out[f"{block}{across}"] = 0
    layers = Layers(
        part,
        left_out
        | {
            r"(audio_)?(time_embed|prompt_adaln)|av_cross_attn": 1,
            rf"(audio_)?caption_projection|{block}(audio_)?attn2\.to_[kv]": text,
            rf"{block}(audio_to_video_attn\.to_[kv]|video_to_audio_attn\.to_([qg]|out)|audio_(attn|ff))": audio,
            r"audio_proj": audio,
            rf"proj_in|proj_out|{block}": video,
        },
    )
    config = part.config()
    wide = config["num_attention_heads"] * config["attention_head_dim"]
    narrow = config["audio_num_attention_heads"] * config["audio_attention_head_dim"]
    own = attention(video, video, wide) + attention(audio, audio, narrow)
    to_text = attention(video, text, wide) + attention(audio, text, narrow)
    to_other = 0 if isolated else attention(video, audio, narrow) + attention(audio, video, narrow)
    attended = config["num_layers"] * (own + to_text + to_other) - (0 if skipped is None else own)
    return Work(layers.flops + attended, layers.activations(COPIES, precision))
