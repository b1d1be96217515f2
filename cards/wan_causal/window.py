"""Which earlier frames a chunk of frames attends to. Pure."""

CHUNK = 3
"""Latent frames that are denoised together, each attending to all of them (num_frame_per_block)."""


def visible(chunk: int, window: int, sink: int) -> list[int]:
    """The latent frames before a chunk whose keys and values it reads.

    All, until they and the chunk are more than `window`; from then on the first `sink` of all and the last that fit
    (local_attn_size and sink_size of Huang et al. 2025, Self Forcing).
    """
    start, room = chunk * CHUNK, window - CHUNK
    if start <= room:
        return list(range(start))
    return [*range(sink), *range(start - (room - sink), start)]


def chunks(frames: list[int]) -> list[int]:
    """Those that the frames lie in, in order."""
    return sorted({frame // CHUNK for frame in frames})
