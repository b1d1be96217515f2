"""A step that makes an Inf fails, as one that makes a NaN always does, and says which tensor: `nan_watch`."""

import torch

from cards.extensions.observer import NOTHING, Observed, Observer, Seen
from cards.family import Made
from cards.finite import not_finite


class NanWatch(Observer):
    def after_step(self, step: Seen, made: Made | None) -> Observed:
        """Raises NotFinite for the first tensor that holds a NaN or an Inf."""
        for name, tensor in (made.tensors if made else {}).items():
            if not bool(torch.isfinite(tensor).all()):  # one value to wait for, also on a GPU
                raise not_finite(step.plan, name, tensor)
        return NOTHING


def open(argument: str) -> Observer:
    return NanWatch()
