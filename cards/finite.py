"""Numbers that are none, in what a step makes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cards.errors import NotFinite
from cards.family import Made
from cards.wire import WorkPlan

if TYPE_CHECKING:
    import torch


def check(plan: WorkPlan, made: Made, read: "Mapping[str, torch.Tensor]") -> None:
    """Raises NotFinite for the first tensor that holds a NaN and was not read. An Inf may be meant, as in a mask."""
    known = {id(tensor) for tensor in read.values()}
    for name, tensor in made.tensors.items():
        if id(tensor) not in known and has_nan(tensor):
            raise not_finite(plan, name, tensor)


def has_nan(tensor: "torch.Tensor") -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return False
    one = tensor if tensor.itemsize == 1 else tensor.max()  # NaN if any is; there is none of floats of a byte
    return bool(one.isnan().any())  # one value to wait for, also on a GPU


def not_finite(plan: WorkPlan, name: str, tensor: "torch.Tensor") -> NotFinite:
    nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    return NotFinite(plan.loop, plan.step, name, nan=nan, inf=inf, of=tensor.numel())
