"""Procedural clips: one coloured shape, one motion, one background. Everything is a pure function of a seed.

An object stays in the frame: it bounces off the edges, and stops growing or shrinking at `RADII`. A clip made from text
alone never gets that far; a clip that continues given frames may.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cards.shapes.vocabulary import BACKGROUNDS, COLOURS, DIRECTIONS, MOTIONS, SHAPES, caption

SIZE = 64
FRAMES = 24
FPS = 12
FRAMES_PER_LATENT = 4

RADII = (6.0, 14.0)  # pixels; radius of the circle with the object's area
SPEED = (0.9, 1.4)  # pixels a frame
GROWTH = (1.7, 2.1)  # last radius over first

PALETTE = {
    "red": (230, 40, 40), "green": (40, 190, 60), "blue": (50, 90, 250), "yellow": (245, 225, 50),
    "orange": (250, 140, 20), "purple": (170, 60, 210), "cyan": (50, 215, 230), "white": (245, 245, 245),
    "black": (10, 10, 10), "gray": (105, 105, 105), "navy": (15, 20, 90), "maroon": (95, 15, 30),
}  # fmt: skip

# How far an object of radius 1 reaches to the left and right, up, and down.
EXTENT = {
    "circle": (1.0, 1.0, 1.0),
    "square": (0.886, 0.886, 0.886),
    "triangle": (1.347, 1.555, 0.778),
    "cross": (1.153, 1.153, 1.153),
}

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Scene:
    """What a prompt asks for."""

    colour: str
    shape: str
    motion: str
    background: str

    @property
    def caption(self) -> str:
        return caption(self.colour, self.shape, self.motion, self.background)

    @property
    def held_out(self) -> bool:
        """A tenth of the colour, shape and motion triples is never trained on."""
        colour, shape, motion = COLOURS.index(self.colour), SHAPES.index(self.shape), MOTIONS.index(self.motion)
        return (44 * colour + 11 * shape + motion) % 10 == 7


@dataclass(frozen=True)
class Clip:
    """A scene with its path. The first `given` latent frames show another motion, and are not to be generated."""

    scene: Scene
    path: Floats  # (FRAMES, 3): x, y, radius in pixels
    given: int = 0


def scenes() -> list[Scene]:
    """Every prompt of the model."""
    return [Scene(*parts) for parts in product(COLOURS, SHAPES, MOTIONS, BACKGROUNDS)]


def draw_scene(rng: np.random.Generator, *, held_out: bool = False) -> Scene:
    while True:
        scene = Scene(*(str(rng.choice(words)) for words in (COLOURS, SHAPES, MOTIONS, BACKGROUNDS)))
        if scene.held_out == held_out:
            return scene


def draw_clip(rng: np.random.Generator, scene: Scene) -> Clip:
    """The motion from the first frame to the last, without reaching an edge."""
    velocity = _velocity(rng, scene.motion)
    radius = rng.uniform(8.5, 11.0)
    if scene.motion in ("growing", "shrinking"):
        ratio = rng.uniform(*GROWTH)
        small = rng.uniform(RADII[0], RADII[1] / ratio)
        rate = small * (ratio - 1) / (FRAMES - 1)
        velocity[2] = math.copysign(rate, velocity[2])
        radius = small if rate == velocity[2] else small * ratio
    travel = velocity * (FRAMES - 1)
    low, high = _bounds(scene.shape, max(radius, radius + travel[2]))
    start = rng.uniform(low - np.minimum(travel[:2], 0), high - np.maximum(travel[:2], 0))
    return Clip(scene, _walk(scene.shape, np.array([*start, radius]), [(FRAMES, velocity)]))


def draw_continued(rng: np.random.Generator, scene: Scene) -> Clip:
    """A still image, the same motion or another one comes first; then the scene's, from wherever the object is."""
    given = int(rng.integers(1, 3))
    velocity = _velocity(rng, scene.motion)
    kind = rng.uniform()
    if kind < 0.4:
        before = velocity
    elif kind < 0.6:
        before = np.zeros(3)
    else:
        before = _velocity(rng, str(rng.choice(MOTIONS)))
    radius = rng.uniform(8.0, 12.0) - 10 * velocity[2]  # some room to grow or shrink
    start = rng.uniform(*_bounds(scene.shape, radius))
    first = given * FRAMES_PER_LATENT
    path = _walk(scene.shape, np.array([*start, radius]), [(first, before), (FRAMES - first, velocity)])
    return Clip(scene, path, given)


def render(clip: Clip) -> Floats:
    """Frames (FRAMES, SIZE, SIZE, 3) in [0, 1]."""
    alpha = coverage(clip.scene.shape, clip.path)[..., None]
    colour, background = (
        np.array(PALETTE[name], np.float32) / 255 for name in (clip.scene.colour, clip.scene.background)
    )
    frames: Floats = background + alpha * (colour - background)
    return frames


def coverage(shape: str, path: Floats) -> Floats:
    """The share of each pixel that the object covers, (frames, SIZE, SIZE), from the distance to its outline."""
    centre = np.arange(SIZE, dtype=np.float32) + 0.5
    x, y, radius = (path[:, i].astype(np.float32)[:, None, None] for i in range(3))
    distance = _distance(shape, centre[None, None, :] - x, centre[None, :, None] - y, radius)
    covered: Floats = np.clip(np.float32(0.5) - distance, 0, 1)
    return covered


def stream(seed: int, *, continued: float) -> Iterator[Clip]:
    """Training clips without end; `continued` is the share with given frames."""
    rng = np.random.default_rng(seed)
    while True:
        scene = draw_scene(rng)
        yield draw_continued(rng, scene) if rng.uniform() < continued else draw_clip(rng, scene)


def _distance(shape: str, x: Floats, y: Floats, radius: Floats) -> Floats:
    """Signed distance in pixels to the outline of a shape with the area of a circle of `radius`; y points down."""
    distance: Floats
    match shape:
        case "circle":
            distance = np.sqrt(x * x + y * y) - radius
        case "square":
            distance = np.maximum(np.abs(x), np.abs(y)) - np.float32(0.886) * radius
        case "triangle":
            slope = np.abs(x) * np.float32(0.866) - y * np.float32(0.5)
            distance = np.maximum(slope, y) - np.float32(0.778) * radius
        case "cross":
            x, y, arm, half = np.abs(x), np.abs(y), np.float32(1.153) * radius, np.float32(0.415) * radius
            distance = np.minimum(np.maximum(x - arm, y - half), np.maximum(x - half, y - arm))
        case _:
            raise ValueError(shape)
    return distance


def _velocity(rng: np.random.Generator, motion: str) -> NDArray[np.float64]:
    """Pixels a frame in x, y and radius."""
    if motion.startswith("moving "):
        angle = DIRECTIONS.index(motion.removeprefix("moving ")) * math.pi / 4
        return rng.uniform(*SPEED) * np.array([math.cos(angle), math.sin(angle), 0.0])
    rate = rng.uniform(0.2, 0.3)
    return np.array([0.0, 0.0, {"growing": rate, "shrinking": -rate, "standing still": 0.0}[motion]])


def _bounds(shape: str, radius: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the centre may be so that the whole object is in the frame."""
    side, up, down = (radius * reach for reach in EXTENT[shape])
    return np.array([side, up]), np.array([SIZE - side, SIZE - down])


def _walk(shape: str, state: NDArray[np.float64], legs: list[tuple[int, NDArray[np.float64]]]) -> Floats:
    path = []
    for frames, velocity in legs:
        velocity = velocity.copy()
        for _ in range(frames):
            path.append(state)
            state = state + velocity
            if not RADII[0] <= state[2] <= RADII[1]:
                velocity[2] = 0.0
                state[2] = np.clip(state[2], *RADII)
            low, high = _bounds(shape, state[2])
            bounced = (state[:2] < low) | (state[:2] > high)
            velocity[:2] = np.where(bounced, -velocity[:2], velocity[:2])
            state[:2] = np.clip(state[:2], low, high)
    return np.array(path, np.float32)
