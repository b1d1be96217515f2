"""What a reference leaves, under the names that a job's outputs and steps have. No torch."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cards.card import Canvas

if TYPE_CHECKING:
    from torch import Tensor


def at(name: str, step: int) -> str:
    """What one step left, as `denoise.latent@3`."""
    return f"{name}@{step}"


class Steps:
    """What the steps of a node left, and the last one as the node's outputs. `tensors` says by which names they come.

    It is a `callback_on_step_end` of diffusers' pipelines.
    """

    def __init__(self, node: str, **tensors: str) -> None:
        self._names = {theirs: f"{node}.{ours}" for ours, theirs in tensors.items()}
        self._left: dict[str, Tensor] = {}
        self._last: dict[str, Tensor] = {}

    def __call__(self, pipeline: Any, step: int, time: Any, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        self.keep(step, tensors)
        return {}

    def keep(self, step: int, tensors: "Mapping[str, Tensor]") -> None:
        self._last = {name: tensors[theirs] for theirs, name in self._names.items()}
        self._left |= {at(name, step): tensor for name, tensor in self._last.items()}

    @property
    def kept(self) -> "dict[str, Tensor]":
        return self._left | self._last


def parts(name: str, frames: "Tensor", canvas: Canvas) -> "Iterator[tuple[str, Tensor]]":
    """A clip (T, H, W, 3) as a job decodes it: `name/0` is its beginning, all further parts are of one length."""
    first, each = canvas.frames_first or 1, canvas.frames_multiple
    for index, part in enumerate(frames.split([first, *[each] * ((len(frames) - first) // each)])):
        yield f"{name}/{index}", part.clone()
