"""What Wan's own configuration says of each of its models: wan/configs and generate.py, and diffusers' scheduler for
the shift of text to video 2.1.
"""

from msgspec import Struct

from cards.card import Preset

SIZES = ((832, 480), (480, 832), (1280, 720), (720, 1280))


class Published(Struct, frozen=True, kw_only=True):
    """`low_noise_guidance` is that of the second expert, where there are two."""

    version: str
    steps: int
    guidance: float
    low_noise_guidance: float = 1.0
    presets: tuple[Preset, ...]


def _presets(small: float, large: float) -> tuple[Preset, ...]:
    """With the flow shift of 480p and that of 720p."""
    return tuple(Preset(width, height, small if min(width, height) < 720 else large) for width, height in SIZES)


TEXT = Published(version="2.1", steps=50, guidance=5, presets=_presets(3.0, 5.0))
IMAGE = Published(version="2.1", steps=40, guidance=5, presets=_presets(3.0, 5.0))
TEXT_EXPERTS = Published(version="2.2", steps=40, guidance=4, low_noise_guidance=3, presets=_presets(12.0, 12.0))
IMAGE_EXPERTS = Published(version="2.2", steps=40, guidance=3.5, low_noise_guidance=3.5, presets=_presets(5.0, 5.0))


def of(*, image: bool, experts: bool) -> Published:
    return (IMAGE_EXPERTS if experts else IMAGE) if image else (TEXT_EXPERTS if experts else TEXT)
