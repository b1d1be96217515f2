"""First-block caching, as ParaAttention and diffusers' FirstBlockCacheConfig do it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cards.card import Point
from cards.extensions.interceptor import Ran, relative_change
from cards.forward import InParts

if TYPE_CHECKING:
    from torch import Tensor


class BlockCache:
    """The first block is run. If what it adds has hardly changed, the others add what they added the last time."""

    name = "block_cache"
    point: Point = "blocks"
    keeps: tuple[str, ...] = ("head", "tail")
    most = 1.0

    def run(self, forward: InParts, kept: "Mapping[str, Tensor]", *, threshold: float, last: bool) -> Ran:
        before = forward.enter()
        after = forward.head(before)
        head = after - before
        if kept and threshold and not relative_change(head, kept["head"]).item() > threshold:
            return Ran(forward.leave(kept["tail"] + after), dict(kept), reused=True)
        through = forward.tail(after)
        return Ran(forward.leave(through), {"head": head, "tail": through - after}, reused=False)
