"""How much work a module is, from the shapes of its weights. No torch.

A weight is applied once to each row: to a token, or to a place of what a convolution makes. Products of matrices,
convolutions and attention count, a multiplication and an addition as two; nothing else does.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cards.card import Precision
from cards.checkpoint import Part
from cards.errors import BadCheckpoint
from cards.sizes import WIDTH

Rows = Mapping[str, int]
"""How many rows, by a pattern that the names of weights begin with. Of several the first one holds."""

WEIGHTS = (".weight", ".filter", "forward_basis", "mel_basis")
"""How the names of those end that rows are multiplied with."""

NOT_RUN = {r".*(embed_tokens|vision_tower|multi_modal_projector|position_embedding)": 0}
"""Of a language model: tables that are looked up, and what only sees pictures."""


class Layers:
    """The layers of one part. `widest` counts what goes into and comes out of the one where that is most."""

    def __init__(self, part: Part, rows: Rows) -> None:
        """Raises BadCheckpoint for a weight that no pattern is for: it would be left out without a word."""
        layers = [(shape, _rows(part, name, rows)) for name, shape in _weights(part)]
        self.flops = sum(2 * count * math.prod(shape) for shape, count in layers)
        self.widest = max((count * (shape[0] + shape[1]) for shape, count in layers), default=0)

    def activations(self, copies: float, precision: Precision) -> int:
        """The most bytes at once, if they are so many times those of the widest layer.

        How many that is of a module was counted in bfloat16 at full size (tests/parity/test_sizes_published.py); of
        text encoders, which need data for their masks, it is an estimate.
        """
        return int(copies * self.widest * WIDTH[precision])


def attention(queries: int, keys: int, width: int) -> int:
    """Every query with every key, then with every value. `width` is that of all heads of the queries."""
    return 4 * queries * keys * width


def language_model(part: Part, tokens: int) -> Layers:
    """A decoder of text over a whole prompt, with the scores of all words at its end (transformers' ForCausalLM)."""
    head = {} if has(part.shapes(), r".*lm_head") else {r".*embed_tokens": tokens}  # tied to it, and so not stored
    return Layers(part, head | NOT_RUN | {r".*(layers\.|lm_head)": tokens})


def attention_of_language_model(config: Mapping[str, Any], tokens: int) -> int:
    """Every token is asked for every other; those to come are masked afterwards."""
    heads = config["num_attention_heads"]
    width = heads * (config.get("head_dim") or config["hidden_size"] // heads)
    return int(config["num_hidden_layers"]) * attention(tokens, tokens, width)


def numbered(names: Iterable[str], before: str) -> list[int]:
    """The blocks of a part: the numbers that stand behind a pattern in the names of its weights."""
    return sorted({int(found[1]) for name in names if (found := re.match(rf"{before}(\d+)\.", name))})


def width_of(part: Part, weight: str) -> int:
    """Of what a layer makes. Raises BadCheckpoint."""
    shapes = part.shapes()
    if weight not in shapes:
        raise BadCheckpoint(part.folder, f"{part.name}: {part.class_name} has a weight {weight}; there is none here")
    return shapes[weight][0]


def has(names: Iterable[str], pattern: str) -> bool:
    return any(re.match(pattern, name) for name in names)


def _weights(part: Part) -> Iterator[tuple[str, tuple[int, ...]]]:
    return ((name, shape) for name, shape in part.shapes().items() if len(shape) > 1 and name.endswith(WEIGHTS))


def _rows(part: Part, name: str, rows: Rows) -> int:
    for pattern, count in rows.items():
        if re.match(pattern, name):
            return count
    raise BadCheckpoint(part.folder, f"{part.name}: {name} is of no layer of {part.class_name} that is known here")
