"""Batch invariance: modules that give a row of a batch the bits that it has alone.

Kernels are chosen by shape. On a CPU those of most modules do not mind how many samples share a call; a matrix product
of one row a sample does (a product of a matrix and a vector alone, of two matrices in a batch), and so do a convolution
and the odd elements at the end of a vector. Such modules, and no others, are called row by row. A call of one row is
what it was.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def row_by_row(model: "nn.Module", names: Iterable[str]) -> None:
    """Have these modules of this model take a batch row by row; parameters and their names stay as they are."""
    for name in names:
        module = model.get_submodule(name)
        if not hasattr(module.forward, "of_a_row"):
            module.forward = _by_row(module.forward)


def adapted(model: "nn.Module") -> None:
    """Adapters were put around modules of it: those around one that goes row by row do so too, and the narrow products
    of all of them, whose kernels mind the number of rows. Nothing, where no module goes row by row.
    """
    names = {name for name, module in model.named_modules() if hasattr(module.forward, "of_a_row")}
    if names:
        leaves = (name for name, module in model.named_modules() if not next(module.children(), None))
        narrow = {name for name in leaves if ".lora_" in name}
        row_by_row(model, narrow | {name.removesuffix(".base_layer") for name in names})


def offenders(model: "nn.Module", call: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    """The leaf modules that give other bits in this call, of a batch of so many rows, than for each of its rows alone.

    Each is asked again for what it was given, so that one does not hide another.
    """
    import torch

    found: dict[str, None] = {}

    def check(name: str, module: "nn.Module", given: tuple[Any, ...], made: Any) -> None:
        batches = [one for one in (*given[:1], made) if isinstance(one, torch.Tensor) and one.shape[:1] == (rows,)]
        if len(batches) == 2:  # in and out; what has no rows is the same for all of them
            alone = [module.forward(row, *given[1:]) for row in given[0].split(1)]
            if not torch.equal(torch.cat(alone), made):
                found[name] = None

    leaves = [(name, module) for name, module in model.named_modules() if not next(module.children(), None)]
    hooks = [module.register_forward_hook(functools.partial(check, name)) for name, module in leaves]
    try:
        with torch.inference_mode():
            model(**call)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found)


def _by_row(forward: "Callable[[torch.Tensor], torch.Tensor]") -> "Callable[[torch.Tensor], torch.Tensor]":
    import torch

    @functools.wraps(forward)
    def rows(batch: "Tensor") -> "Tensor":
        return forward(batch) if len(batch) == 1 else torch.cat([forward(row) for row in batch.split(1)])

    rows.of_a_row = forward  # type: ignore[attr-defined]
    return rows
