"""Frames and sound as files that people open: H.264 and AAC in mp4, PCM in wav, a contact sheet and stills as PNG."""

import io
import wave
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import av
from msgspec import Struct
from PIL import Image

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Frames = NDArray[np.uint8]
    """(T, H, W, 3), sRGB."""

    Samples = NDArray[np.int16]
    """(N, channels): one or two."""

H264 = {"crf": "10", "preset": "medium", "threads": "1", "x264-params": "mbtree=0"}
"""Without the macroblock tree, which reads memory that nobody wrote: MALLOC_PERTURB_ showed it."""

LAYOUTS = {1: "mono", 2: "stereo"}


class Sound(Struct, frozen=True):
    """`rate` in samples per second."""

    samples: "Samples"
    rate: int


def pcm(waveform: "NDArray[np.float32]") -> "Samples":
    """(channels, N) from -1 to 1 as 16-bit samples, as diffusers' encode_video makes them."""
    import numpy as np

    return (np.clip(waveform, -1.0, 1.0).T * np.float32(32767.0)).astype(np.int16)


def wav(sound: Sound) -> bytes:
    """16-bit PCM."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(sound.samples.shape[1])
        written.setsampwidth(2)
        written.setframerate(sound.rate)
        written.writeframes(sound.samples.astype("<i2").tobytes())
    return file.getvalue()


def mp4(frames: "Frames", *, fps: int, scale: int = 1, sound: Sound | None = None) -> bytes:
    """The clip, each pixel `scale` wide. The same frames give the same bytes: one thread, no dates, no encoder name."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=fps, options=H264)
        height, width = frames.shape[1] * scale, frames.shape[2] * scale
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        if sound is not None:
            _add_sound(container, sound)
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_image(_enlarged(pixels, scale))
            frame.pts, frame.time_base = index, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def _add_sound(container: "av.container.OutputContainer", sound: Sound) -> None:
    """All of it: the muxer puts what comes early where it belongs."""
    layout = LAYOUTS[sound.samples.shape[1]]
    stream = container.add_stream("aac", rate=sound.rate, layout=layout)
    stream.codec_context.flags |= av.codec.context.Flags.bitexact
    frame = av.AudioFrame.from_ndarray(sound.samples.reshape(1, -1), format="s16", layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = sound.rate, 0, Fraction(1, sound.rate)
    container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def contact_sheet(frames: "Frames", *, columns: int, scale: int = 1, gap: int = 4) -> bytes:
    """All frames side by side, in reading order, as a PNG."""
    rows = -(-len(frames) // columns)
    height, width = frames.shape[1] * scale, frames.shape[2] * scale
    sheet = Image.new("RGB", (columns * (width + gap) + gap, rows * (height + gap) + gap), "white")
    for index, pixels in enumerate(frames):
        row, column = divmod(index, columns)
        sheet.paste(_enlarged(pixels, scale), (gap + column * (width + gap), gap + row * (height + gap)))
    return _png(sheet)


def still(pixels: "Frames", *, scale: int = 1) -> bytes:
    """One frame (H, W, 3) as a PNG."""
    return _png(_enlarged(pixels, scale))


def pixels(pictures: "Sequence[Image.Image]") -> "torch.Tensor":
    """Pictures of one size as uint8 (T, H, W, 3)."""
    import numpy as np
    import torch

    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))


def _enlarged(pixels: "Frames", scale: int) -> Image.Image:
    image = Image.fromarray(pixels)
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.LANCZOS)


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
