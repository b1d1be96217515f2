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


def offenders(model: "nn.Module", call: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    """The leaf modules that give other bits in this call, of a batch of so many rows, than for each of its rows alone.

    Each is asked again for what it was given, so that one does not hide another.
    """
    import torch

    found: list[str] = []
    leaves = {name: module for name, module in model.named_modules() if not next(module.children(), None)}

    def check(name: str, module: "nn.Module", given: tuple[Any, ...], made: "Tensor") -> None:
        if not given or not isinstance(given[0], torch.Tensor) or given[0].shape[:1] != (rows,) or name in found:
            return
        alone = [module.forward(row, *given[1:]) for row in given[0].split(1)]
        if not torch.equal(torch.cat(alone), made):
            found.append(name)

    hooks = [
        module.register_forward_hook(functools.partial(_hand_on, functools.partial(check, name)))
        for name, module in leaves.items()
    ]
    try:
        with torch.inference_mode():
            model(**call)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found)


def _hand_on(check: Callable[..., None], module: "nn.Module", given: tuple[Any, ...], made: "Tensor") -> None:
    check(module, given, made)


def _by_row(forward: "Callable[[torch.Tensor], torch.Tensor]") -> "Callable[[torch.Tensor], torch.Tensor]":
    import torch

    @functools.wraps(forward)
    def rows(batch: "Tensor") -> "Tensor":
        return forward(batch) if len(batch) == 1 else torch.cat([forward(row) for row in batch.split(1)])

    rows.of_a_row = forward  # type: ignore[attr-defined]
    return rows
