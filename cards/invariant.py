"""Batch invariance: modules that give a row of a batch the bits that it has alone.

Kernels are chosen by shape. On a CPU those of most modules do not mind how many samples share a call; a matrix product
of one row a sample does (a product of a matrix and a vector alone, of two matrices in a batch), and so do a convolution
and the odd elements at the end of a vector. Such modules, and no others, are called row by row. A call of one row is
what it was.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

LOOKED_AT = {4: 1 << 11, 2: 1 << 16}
"""Values of a module that are compared, at least, by the bytes of one. Where another kernel sums in another order, half
of them differ in float32. In bfloat16 one in 6000 does: most are rounded alike.
"""


def row_by_row(model: "nn.Module", names: Iterable[str]) -> None:
    """Have these modules of this model take a batch row by row; parameters and their names stay as they are."""
    for name in names:
        module = model.get_submodule(name)
        if not hasattr(module.forward, "of_a_row"):
            rows: Any = _by_part(module.forward, 1)
            rows.of_a_row = module.forward
            module.forward = rows


@contextmanager
def in_parts(model: "nn.Module", names: Iterable[str], part: int) -> Iterator[None]:
    """Have these modules take a batch so many rows at a time, for as long as this is entered."""
    modules = [model.get_submodule(name) for name in names]
    before = [vars(module).get("forward") for module in modules]
    try:
        for module in modules:
            module.forward = _by_part(module.forward, part)
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def adapted(model: "nn.Module") -> None:
    """Adapters were put around modules of it: those around one that goes row by row do so too, and the narrow products
    of all of them, whose kernels mind the number of rows. Nothing, where no module goes row by row.
    """
    names = {name for name, module in model.named_modules() if hasattr(module.forward, "of_a_row")}
    if names:
        leaves = (name for name, module in model.named_modules() if not next(module.children(), None))
        narrow = {name for name in leaves if ".lora_" in name}
        row_by_row(model, narrow | {name.removesuffix(".base_layer") for name in names})


def offenders(
    model: "nn.Module", call: Mapping[str, Any], rows: int, part: int = 1, known: Collection[str] = ()
) -> tuple[str, ...]:
    """The leaf modules that give other bits in this call, of a batch of so many rows, than for each part of it alone.

    Each is asked again for what it was given, so that one does not hide another, and for noise where that is little.
    Those that are `known` to be such take parts.
    """
    import torch

    found: dict[str, None] = {}

    def has_rows(one: Any) -> bool:
        return isinstance(one, torch.Tensor) and one.shape[:1] == (rows,)

    def check(name: str, module: "nn.Module", given: tuple[Any, ...], named: dict[str, Any], made: Any) -> None:
        batches = [one for one in (*given, *named.values(), made) if has_rows(one)]
        if len(batches) != 2 or not given or batches[0] is not given[0]:
            return  # what has no rows is the same for all of them
        if _minds(lambda batch: module.forward(batch, *given[1:], **named), given[0], made, part):
            found[name] = None

    leaves = [(name, module) for name, module in model.named_modules() if not next(module.children(), None)]
    asked = [one for one in leaves if one[0] not in known and not hasattr(one[1].forward, "of_a_row")]
    hooks = [module.register_forward_hook(functools.partial(check, name), with_kwargs=True) for name, module in asked]
    try:
        with torch.inference_mode(), in_parts(model, known, part):
            model(**call)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found)


def same(one: "Tensor", other: "Tensor") -> bool:
    """To the bit; what is not a number is so in both, whichever it is."""
    import torch

    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    alike = (one.view(kind) == other.view(kind)) | (one.isnan() & other.isnan())
    return bool(alike.all())


def _minds(call: "Callable[[torch.Tensor], torch.Tensor]", batch: "Tensor", made: "Tensor", part: int) -> bool:
    """Whether parts of a batch are given other bits than all of it, which is given what was `made`.

    One vector a row, in half precision, is taken to: its values are too few for that to show soon.
    """
    import torch

    size = batch.element_size() if batch.is_floating_point() else 0
    if size == 2 and batch.dim() == 2:
        return True
    generator = torch.Generator(batch.device).manual_seed(0)
    looked_at = 0
    while looked_at < LOOKED_AT.get(size, 1):
        if looked_at:
            batch = torch.empty_like(batch).normal_(generator=generator)
            made = call(batch)
        if not same(torch.cat([call(rows) for rows in batch.split(part)]), made):
            return True
        looked_at += made.numel()
    return False


def _by_part(forward: "Callable[..., torch.Tensor]", part: int) -> "Callable[..., torch.Tensor]":
    import torch

    @functools.wraps(forward)
    def parts(batch: "Tensor", *rest: Any, **named: Any) -> "Tensor":
        if len(batch) <= part:
            return forward(batch, *rest, **named)
        return torch.cat([forward(rows, *rest, **named) for rows in batch.split(part)])

    return parts
