"""What is asked for, and what it costs on the device that is simulated: one H200, everything resident.

Work is what `engine models plan` counts (tests/ops/test_falsifier.py holds it to that); rates are published figures:

- transformers: Wan 2.1 1.3B with FlashAttention 2 on an H200 needs 95.21 s for 50 guided steps at 480p, and a student
  of it 2.88 s for 3 (FastVideo, "FastWan", table 1). By our counts that is 297 and 295 TFLOP/s.
- decoders: the VAE of Wan 2.1 needs 7.1 s for 81 frames of 1024x1024 (SGLang, disaggregation of diffusion). By our
  counts that is 102 TFLOP/s.
"""

from collections.abc import Mapping

from msgspec import Struct

TRANSFORMER_TFLOPS = 297.0
DECODER_TFLOPS = 102.0

MEMORY_BYTES = 141_000_000_000


class Part(Struct, frozen=True, kw_only=True):
    """A node of a card's program: its steps are alike."""

    node: str
    steps: int = 1
    tflop: float
    """Of one step."""
    held_gb: float
    """While it runs, beside the weights."""
    decodes: bool = False
    shows: bool = False
    """Whether its first step gives something to look at."""

    @property
    def seconds(self) -> float:
        """Of one step that runs alone."""
        return self.tflop / (DECODER_TFLOPS if self.decodes else TRANSFORMER_TFLOPS)


class Kind(Struct, frozen=True, kw_only=True):
    model: str
    shape: str
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        """From the first step to the last, if nothing else is there."""
        return sum(part.steps * part.seconds for part in self.parts)


def _wan(model: str, frames: int, *, steps: int, tflop: float, held_gb: float, encode: float) -> Kind:
    latent_frames = (frames - 1) // 4 + 1
    return Kind(
        model=model,
        shape=f"832x480x{frames}",
        parts=(
            Part(node="encode", tflop=encode, held_gb=0.05),
            Part(node="denoise", steps=steps, tflop=tflop, held_gb=held_gb),
            Part(node="decode", steps=latent_frames, tflop=13.55, held_gb=7.52, decodes=True, shows=True),
        ),
    )


def _klein(size: str, *, tflop: float, held_gb: float, decode: float, decode_gb: float) -> Kind:
    return Kind(
        model="klein",
        shape=size,
        parts=(
            Part(node="encode", tflop=4.27, held_gb=0.17),
            Part(node="denoise", steps=4, tflop=tflop, held_gb=held_gb),
            Part(node="decode", tflop=decode, held_gb=decode_gb, decodes=True, shows=True),
        ),
    )


KINDS: Mapping[str, Kind] = {
    "picture": _klein("1024x1024", tflop=34.82, held_gb=0.63, decode=10.47, decode_gb=1.61),
    "thumbnail": _klein("512x512", tflop=10.17, held_gb=0.22, decode=2.52, decode_gb=0.40),
    "draft": _wan("student", 49, steps=4, tflop=128.6, held_gb=1.02, encode=4.84),
    "clip": _wan("student", 81, steps=4, tflop=283.0, held_gb=1.64, encode=4.84),
    "sound": Kind(
        model="ltx2",
        shape="768x512x121",
        parts=(
            Part(node="encode", tflop=27.91, held_gb=2.53),
            Part(node="base", steps=8, tflop=48.02, held_gb=0.29),
            Part(node="upsample", tflop=3.65, held_gb=0.05),
            Part(node="refine", steps=3, tflop=198.8, held_gb=1.10),
            Part(node="decode", tflop=61.22, held_gb=4.18, decodes=True, shows=True),
        ),
    ),
    "film": _wan("wan", 81, steps=50, tflop=566.0, held_gb=1.70, encode=9.69),
}
"""Pictures of FLUX.2 klein 4B; drafts and clips of a four-step student of Wan 2.1 1.3B; clips with sound of LTX-2,
distilled; films of Wan 2.1 1.3B itself, 50 guided steps."""

WEIGHTS_GB: Mapping[str, float] = {"klein": 15.96, "student": 14.45, "ltx2": 68.68, "wan": 14.45}

SESSION_KINDS = ("picture", "draft", "clip", "sound")
"""Those that somebody waits for."""
