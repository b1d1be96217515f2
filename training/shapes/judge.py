"""Reads what a clip shows, without being told what it should show; then compares.

The reading is analytic. The background is the median colour. Coverage is how far a pixel is on the line from the
background to an object's colour, and its moments give place and size. The shape is the template of that place and size
with the best overlap. The motion is the path's direction, after bounces off the edges are unfolded.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cards.shapes.vocabulary import BACKGROUNDS, COLOURS, DIRECTIONS, SHAPES
from training.shapes.data import PALETTE, SIZE, Floats, Scene, coverage

COLOUR_TOLERANCE = 45.0  # distance in RGB, of 255 a channel
CORE_PIXELS = 12  # pixels a frame of a colour, for an object to be there
OVERLAP = 0.75  # intersection over union with the template, for a shape to be one
STILL_PX = 6.0
MOVED_PX = 8.0
RESIZED = 1.35  # last over first radius
STRAY_PX = 3.0  # root mean square distance from a straight, even path
STRAY_SIZE = 0.15  # the same for the radius of a moving object, as a share of it

UNCLEAR = "unclear"


@dataclass(frozen=True)
class Reading:
    background: str
    colour: str
    shape: str
    motion: str
    count: int  # object colours seen
    clean: bool  # less than 2 % of the pixels are neither background, object, nor between the two
    overlap: dict[str, float]  # intersection over union with each shape, mean over frames

    def fidelity(self, scene: Scene) -> float:
        """From 0 to 1, how much the object looks like the one asked for."""
        return self.overlap[scene.shape] if self.colour == scene.colour else 0.0


@dataclass(frozen=True)
class Verdict:
    background: bool
    colour: bool
    shape: bool
    motion: bool
    count: bool  # one object, and nothing else
    fidelity: float

    @property
    def right(self) -> bool:
        """Every attribute at once."""
        return self.background and self.colour and self.shape and self.motion and self.count


def judge(frames_THWC: NDArray[np.uint8], scene: Scene) -> Verdict:
    reading = read(frames_THWC)
    return Verdict(
        background=reading.background == scene.background,
        colour=reading.colour == scene.colour,
        shape=reading.shape == scene.shape,
        motion=reading.motion == scene.motion,
        count=reading.count == 1 and reading.clean,
        fidelity=reading.fidelity(scene),
    )


def read(frames_THWC: NDArray[np.uint8]) -> Reading:
    pixels = frames_THWC.astype(np.float32)
    background = _nearest(np.median(pixels, axis=(0, 1, 2)), BACKGROUNDS)
    present = _colours(pixels)
    if background == UNCLEAR or not present:
        return Reading(background, UNCLEAR, UNCLEAR, UNCLEAR, 0, False, dict.fromkeys(SHAPES, 0.0))
    alpha_THW, distance_THW = _coverage(pixels, background, present[0])
    path = _path(alpha_THW)
    overlap = {shape: _overlap(alpha_THW, coverage(shape, path)) for shape in SHAPES}
    best = max(overlap, key=lambda shape: overlap[shape])
    clean = bool((distance_THW > 2 * COLOUR_TOLERANCE).mean() < 0.02)
    return Reading(
        background=background,
        colour=present[0],
        shape=best if overlap[best] >= OVERLAP else UNCLEAR,
        motion=_motion(path, alpha_THW) if clean else UNCLEAR,
        count=len(present),
        clean=clean,
        overlap=overlap,
    )


def _nearest(colour: Floats, names: tuple[str, ...]) -> str:
    distance = {name: float(np.linalg.norm(colour - np.array(PALETTE[name], np.float32))) for name in names}
    best = min(distance, key=lambda name: distance[name])
    return best if distance[best] < COLOUR_TOLERANCE else UNCLEAR


def _colours(pixels: Floats) -> list[str]:
    """The object colours that are there, the largest first."""
    palette = np.array([PALETTE[name] for name in COLOURS], np.float32)
    distance = np.stack([np.square(pixels - colour).sum(axis=-1) for colour in palette])
    core = (distance == distance.min(axis=0)) & (distance < COLOUR_TOLERANCE**2)
    count = core.sum(axis=(1, 2, 3)) / len(pixels)
    return [COLOURS[index] for index in np.argsort(-count) if count[index] >= CORE_PIXELS]


def _coverage(pixels: Floats, background: str, colour: str) -> tuple[Floats, Floats]:
    """Each pixel's place between background and colour, and its distance from the line between the two."""
    base, top = (np.array(PALETTE[name], np.float32) for name in (background, colour))
    step = top - base
    alpha = np.clip((pixels - base) @ step / (step @ step), 0, 1)
    distance = np.linalg.norm(pixels - base - alpha[..., None] * step, axis=-1)
    alpha[(alpha < 0.1) | (distance > 2 * COLOUR_TOLERANCE)] = 0
    return alpha, distance


def _path(alpha_THW: Floats) -> Floats:
    """Centre and radius in pixels, (frames, 3)."""
    centre = np.arange(SIZE, dtype=np.float32) + 0.5
    area = np.maximum(alpha_THW.sum(axis=(1, 2)), 1e-3)
    x, y = alpha_THW.sum(axis=1) @ centre / area, alpha_THW.sum(axis=2) @ centre / area
    return np.stack([x, y, np.sqrt(area / np.pi)], axis=1).astype(np.float32)


def _overlap(seen: Floats, template: Floats) -> float:
    union = np.maximum(seen, template).sum(axis=(1, 2))
    return float((np.minimum(seen, template).sum(axis=(1, 2)) / np.maximum(union, 1e-3)).mean())


def _motion(path: Floats, alpha_THW: Floats) -> str:
    radius = path[:, 2]
    quarter = len(radius) // 4
    ratio = float(radius[-quarter:].mean() / max(radius[:quarter].mean(), 1e-3))
    centre = np.stack([_unfold(path[:, axis], alpha_THW.max(axis=1 + axis)) for axis in (0, 1)], axis=1)
    moved = centre[-quarter:].mean(axis=0) - centre[:quarter].mean(axis=0)
    reach = float(np.ptp(centre, axis=0).max())
    if reach < STILL_PX:
        if max(ratio, 1 / ratio) < 1 + (RESIZED - 1) / 2:
            return "standing still"
        return UNCLEAR if max(ratio, 1 / ratio) < RESIZED else "growing" if ratio > 1 else "shrinking"
    if np.linalg.norm(moved) < MOVED_PX or _stray(centre) > STRAY_PX or _stray(radius / radius.mean()) > STRAY_SIZE:
        return UNCLEAR
    octant = round(float(np.arctan2(moved[1], moved[0])) / (np.pi / 4)) % 8
    return f"moving {DIRECTIONS[octant]}"


def _unfold(position: Floats, profile: Floats) -> Floats:
    """A path along one axis as it would be without edges: where the object turns round at an edge, it goes on instead.

    `profile` (frames, SIZE) is the largest coverage at each place of the axis.
    """
    near = (profile[:, :3].max(axis=1) > 0.3, profile[:, -3:].max(axis=1) > 0.3)
    step, sign, heading = np.diff(position), 1.0, 0.0
    for index, delta in enumerate(step.copy()):
        at_edge = near[0][index] if heading < 0 else near[1][index]
        if delta * heading < 0 and at_edge:
            sign = -sign
        if abs(delta) > 0.1:
            heading = delta
        step[index] = sign * delta
    return np.concatenate([[0.0], np.cumsum(step)]).astype(np.float32)


def _stray(values: Floats) -> float:
    """Root mean square distance from the straight line through a series of numbers or points."""
    time = np.arange(len(values), dtype=np.float32)
    design = np.stack([time, np.ones_like(time)], axis=1)
    fit = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return float(np.sqrt(np.square(values - fit).sum() / len(values)))
