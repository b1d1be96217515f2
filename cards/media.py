"""Frames as files that people open: H.264 in mp4, a contact sheet and stills as PNG."""

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import av
from PIL import Image

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Frames = NDArray[np.uint8]
    """(T, H, W, 3), sRGB."""


def mp4(frames: "Frames", *, fps: int, scale: int = 1) -> bytes:
    """The clip, each pixel `scale` wide. The same frames give the same bytes: one thread, no dates, no encoder name.

    And no macroblock tree: of small frames x264 makes it out of memory that it has not written.
    """
    file = io.BytesIO()
    options = {"crf": "10", "preset": "medium", "threads": "1", "x264-params": "no-mbtree=1"}
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=fps, options=options)
        height, width = frames.shape[1] * scale, frames.shape[2] * scale
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_image(_enlarged(pixels, scale))
            frame.pts, frame.time_base = index, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


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
