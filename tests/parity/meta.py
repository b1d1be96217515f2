"""What a forward takes at full size, on tensors without data: the most bytes at once, and the products counted."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop

from cards.sizes import Work


def work(run: Callable[[], object]) -> Work:
    """Attention is one kernel, as on an accelerator: no scores are kept."""
    live, fused = _Live(), _Fused()
    with torch.no_grad(), FlopCounterMode(display=False) as counted, live, fused:
        run()
    return Work(counted.get_total_flops() + fused.flops, live.most)


class _Live(TorchDispatchMode):
    """The bytes of all storages that were made while this is on, and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._now = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        given = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        made = func(*args, **kwargs or {})
        for one in tree_leaves(made):
            if isinstance(one, Tensor) and (storage := one.untyped_storage())._cdata not in given | self._seen:
                self._now += storage.nbytes()
                self._seen.add(storage._cdata)
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        self.most = max(self.most, self._now)
        return made

    def _gone(self, storage: int, nbytes: int) -> None:
        self._seen.discard(storage)
        self._now -= nbytes


class _Fused(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs or {})
        query, key, value = (*args, *(kwargs[name] for name in ("query", "key", "value")[len(args) :]))[:3]  # type: ignore[index]
        self.flops += sdpa_flop(query.shape, key.shape, value.shape)
        return query.new_empty((*query.shape[:-1], value.shape[-1]))
