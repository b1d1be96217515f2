"""What LTX-2 takes to make pixels and sound of its latents: upsampler, both VAEs, vocoder. No torch."""

from collections.abc import Mapping
from typing import Any

from cards.card import Precision
from cards.checkpoint import Part
from cards.layers import Layers, attention, has, numbered, width_of
from cards.sizes import LoopSizes, Sized, Work, always

Config = Mapping[str, Any]

SPECTRA_PER_LATENT = 4
BINS_PER_LATENT = 4
"""Of the sound, in time and in pitch (LATENT_DOWNSAMPLE_FACTOR of diffusers' AutoencoderKLLTX2Audio)."""

UPSAMPLER_COPIES, DECODER_COPIES, SPECTRUM_COPIES, VOCODER_COPIES, WIDENED_COPIES = 2.0, 2.65, 1.75, 5.0, 7.0
"""Of the widest layer of each."""

WIDENED = "LTX2VocoderWithBWE"
"""That of 2.3: what it makes is heard again, and a second vocoder adds what lies above."""

LOBES = 7
"""Of the window by which the first one's samples are brought to the rate of the second (diffusers' UpSample1d)."""

STRIDES = {"spatial": (1, 4), "temporal": (2, 1), "spatiotemporal": (2, 4)}
"""In time, and in height and width together."""


def pixels_per_latent(vae: Config) -> int:
    """As AutoencoderKLLTX2Video reckons it."""
    given, scaling = vae.get("spatial_compression_ratio"), vae.get("spatio_temporal_scaling", (True,) * 4)
    return int(given or vae.get("patch_size", 4) * 2 ** sum(scaling))


def upsampling(part: Part, precision: Precision, video: tuple[int, ...], audio: tuple[int, ...]) -> LoopSizes:
    """Twice as wide and high, on the VAE's scale; the sound is only unpacked."""
    batch, channels, frames, height, width = video
    places = frames * height * width
    layers = Layers(
        part, {r"initial_conv|res_blocks|upsampler": places, r"post_upsample_res_blocks|final_conv": 4 * places}
    )
    return LoopSizes(
        tensors={
            "latent": Sized((batch, channels, frames, 2 * height, 2 * width), precision),
            "audio": Sized(audio, "float32"),
        },
        work=always(Work(layers.flops, layers.activations(UPSAMPLER_COPIES, precision))),
    )


def video(part: Part, precision: Precision, latent: tuple[int, ...], pixels: tuple[int, int, int]) -> LoopSizes:
    """All frames at once."""
    config, shapes, (frames, height, width) = part.config(), part.shapes(), latent[-3:]
    blocks = numbered(shapes, r"decoder\.up_blocks\.")
    strides = [STRIDES[kind] for kind in config.get("upsample_type", ("spatiotemporal",) * len(blocks))]
    places = frames * height * width
    rows = {r"encoder": 0, r".*time_embedder": 1, r"decoder\.(conv_in|mid_block)": places}
    for block, (longer, larger) in zip(blocks, strides, strict=False):
        here = rf"decoder\.up_blocks\.{block}\."
        rows[rf"{here}(conv_in|upsamplers)"] = places
        if has(shapes, rf"{here}upsamplers"):
            places = (places // frames) * larger
            frames = longer * frames - (longer - 1)
            places *= frames
        rows[here] = places
    layers = Layers(part, rows | {r"decoder\.conv_out": places})
    across, down, count = pixels
    return LoopSizes(
        tensors={"frames": Sized((count, down, across, 3), "uint8")},
        work=always(Work(layers.flops, layers.activations(DECODER_COPIES, precision))),
    )


def audio(part: Part, vocoding: Part, precision: Precision, latent: tuple[int, ...]) -> LoopSizes:
    """To a spectrum, and from that to samples."""
    config = part.config()
    causal = config.get("causality_axis") is not None
    spectra = SPECTRA_PER_LATENT * latent[2] - (SPECTRA_PER_LATENT - 1 if causal else 0)
    voiced, samples, channels = vocoder(vocoding, precision, spectra)
    return LoopSizes(
        tensors={"waveform": Sized((channels, samples), "float32")},
        work=always(spectrum(part, precision, latent) + voiced),
    )


def spectrum(part: Part, precision: Precision, latent: tuple[int, ...]) -> Work:
    """Each level but the last one is twice as long and high, without the first row of what is causal."""
    shapes, (length, bins) = part.shapes(), latent[-2:]
    axis = part.config().get("causality_axis", "height")
    places = length * bins
    rows = {r"encoder": 0, r"decoder\.(conv_in|mid)": places}
    attended = attention(places, places, width_of(part, "decoder.conv_in.conv.weight"))
    middle = attended if has(shapes, r"decoder\.mid\.attn_1") else 0
    for level in reversed(numbered(shapes, r"decoder\.up\.")):
        here = rf"decoder\.up\.{level}\."
        rows[rf"{here}block"] = places
        if has(shapes, rf"{here}upsample"):
            rows[rf"{here}upsample"] = 4 * places
            length, bins = 2 * length - (axis == "height"), 2 * bins - (axis == "width")
            places = length * bins
    layers = Layers(part, rows | {r"decoder\.conv_out": places})
    return Work(layers.flops + middle, layers.activations(SPECTRUM_COPIES, precision))


def vocoder(part: Part, precision: Precision, spectra: int) -> tuple[Work, int, int]:
    """What it takes, and the samples and channels that it makes."""
    config = part.config()
    channels = int(config["out_channels"])
    if part.class_name != WIDENED:
        rows, samples = _voice(config, spectra)
        layers = Layers(part, rows)
        return Work(layers.flops, layers.activations(VOCODER_COPIES, precision)), samples, channels
    rows, narrow = _voice(config, spectra, r"vocoder\.")
    heard = -(-narrow // config["hop_length"])
    wide, _ = _voice(
        {name.removeprefix("bwe_"): value for name, value in config.items() if name.startswith("bwe_")},
        heard,
        r"bwe_generator\.",
    )
    layers = Layers(part, rows | wide | {r"mel_stft": channels * heard})
    ratio = config["output_sampling_rate"] // config["input_sampling_rate"]
    resampled = 2 * channels * (2 * LOBES * ratio + 1) * (narrow + 2 * LOBES)
    return Work(layers.flops + resampled, layers.activations(WIDENED_COPIES, precision)), ratio * narrow, channels


def _voice(config: Config, length: int, before: str = "") -> tuple[dict[str, int], int]:
    """The rows of one LTX2Vocoder, whose weights have names that begin so; and the samples that come out.

    Its activations, where they are kept from aliasing, filter each channel at twice the rate and back.
    """
    rows, channels = {rf"{before}conv_in": length}, config["hidden_channels"]
    margin = 2 * (config.get("antialias_kernel_size", 12) // config.get("antialias_ratio", 2) - 1)
    resnets = len(config["resnet_kernel_sizes"])
    strides = zip(config["upsample_factors"], config["upsample_kernel_sizes"], strict=True)
    for level, (stride, taps) in enumerate(strides):
        rows[rf"{before}upsamplers\.{level}\."] = length
        length = (length - 1) * stride + taps - 2 * ((taps - stride) // 2)
        channels //= 2
        numbers = "|".join(map(str, range(level * resnets, (level + 1) * resnets)))
        here = rf"{before}resnets\.({numbers})\."
        rows[rf"{here}acts.*upsample\."] = channels * (length + margin)
        rows[rf"{here}acts.*downsample\."] = channels * length
        rows[here] = length
    rows[rf"{before}act_out\.upsample\."] = channels * (length + margin)
    rows[rf"{before}act_out\.downsample\."] = channels * length
    return rows | {rf"{before}conv_out": length}, length
