"""A step that makes what is no finite number fails, and says which tensor: `nan_watch`."""

import torch

from cards.errors import NotFinite
from cards.extensions.observer import NOTHING, Observed, Observer, Seen
from cards.family import Made


class NanWatch(Observer):
    def after_step(self, step: Seen, made: Made | None) -> Observed:
        """Raises NotFinite for the first tensor that holds a NaN or an Inf."""
        for name, tensor in (made.tensors if made else {}).items():
            if not bool(torch.isfinite(tensor).all()):  # one value to wait for, also on a GPU
                nan = int(torch.isnan(tensor).sum())
                inf = int(torch.isinf(tensor).sum())
                raise NotFinite(step.plan.loop, step.plan.step, name, nan=nan, inf=inf, of=tensor.numel())
        return NOTHING


def open(argument: str) -> Observer:
    return NanWatch()
