"""The words that the shapes model knows. No torch here: a request is checked where no model is loaded.

Rule 1: a word's place in WORDS is its row in the trained embedding. Append, never reorder.
"""

import re

COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "cyan", "white")
SHAPES = ("circle", "square", "triangle", "cross")
DIRECTIONS = ("right", "down right", "down", "down left", "left", "up left", "up", "up right")
MOTIONS = (*(f"moving {direction}" for direction in DIRECTIONS), "growing", "shrinking", "standing still")
BACKGROUNDS = ("black", "gray", "navy", "maroon")

PAD = 0
LENGTH = 16
WORDS = (
    "<pad>", "a", "on", "background", "moving", "standing", "still", "growing", "shrinking",
    "left", "right", "up", "down", *COLOURS, *SHAPES, *BACKGROUNDS,
)  # fmt: skip

ALIASES = {
    "an": "a", "the": "a", "grey": "gray", "plus": "cross", "ball": "circle", "disc": "circle", "disk": "circle",
    "moves": "moving", "going": "moving", "goes": "moving", "grows": "growing", "shrinks": "shrinking",
    "stands": "standing", "upwards": "up", "downwards": "down", "upward": "up", "downward": "down",
    "leftwards": "left", "rightwards": "right", "violet": "purple", "backdrop": "background",
}  # fmt: skip

_IDS = {word: index for index, word in enumerate(WORDS) if index != PAD}


def tokenize(prompt: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """`LENGTH` word ids, padded at the end, and the words that have none: unknown ones and those past the length."""
    ids: list[int] = []
    unknown: list[str] = []
    for word in re.findall(r"[^\W_]+", prompt.casefold()):
        index = _IDS.get(ALIASES.get(word, word))
        if index is None or len(ids) == LENGTH:
            unknown.append(word)
        else:
            ids.append(index)
    return tuple(ids + [PAD] * (LENGTH - len(ids))), tuple(unknown)


def caption(colour: str, shape: str, motion: str, background: str) -> str:
    """The sentence that the model was trained on, such as "a red circle growing on a black background"."""
    article = "an" if colour[0] in "aeiou" else "a"
    return f"{article} {colour} {shape} {motion} on a {background} background"
