"""The exchanges of a forward whose tokens are dealt out (cards/ulysses.py).

A rank whose part fails makes its remaining turns with zeros, so that nobody waits for it, and says so at the end.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from cards.ulysses import Stretch, parts
from workers.errors import ExchangeBroken

Shape = tuple[int, ...]


class Channel(Protocol):
    """What a rank has to the others that it shares forwards with: `workers.exchange.Group`."""

    @property
    def place(self) -> int: ...

    @property
    def ranks(self) -> Sequence[int]: ...

    def agree(self, error: Exception | None = None) -> None: ...

    def all_to_all(self, sent: Tensor, gives: list[int], takes: list[int]) -> Tensor:
        """Raises ExchangeBroken. After any other error no turn was made: there is no memory for what comes."""
        ...


class Ulysses:
    """It is a `cards.ulysses.Ranks`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def degree(self) -> int:
        return len(self._channel.ranks)

    @contextmanager
    def take_turns(self, stretch: Stretch) -> Iterator["Exchanges"]:
        """Raises BranchFailed, and ExchangeBroken."""
        self._channel.agree()
        exchanges, failed = Exchanges(self._channel, stretch), None
        try:
            yield exchanges
        except ExchangeBroken:
            raise
        except Exception as error:  # noqa: BLE001 - a step's own, which the other ranks wait to hear of
            failed = error
            exchanges.give_up()
        self._channel.agree(failed)


class Exchanges:
    """It is a `cards.ulysses.Turns`. B, L, l, N, n, d, D are as there."""

    def __init__(self, channel: Channel, stretch: Stretch) -> None:
        self._channel = channel
        self._stretch = stretch
        self._parts = parts(stretch.tokens, len(channel.ranks))
        self._heads = stretch.heads // len(channel.ranks)
        self._left = 2 * stretch.layers + 1

    def mine(self, whole: Tensor) -> Tensor:
        end = [*accumulate(self._parts)][self._channel.place]
        return whole[:, end - self._parts[self._channel.place] : end]

    def to_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        batch, width, count = self._stretch.batch, self._stretch.width, len(self._parts)
        sent = torch.stack((query, key, value)).chunk(count, dim=3)
        came = self._exchange(sent, [(3, batch, part, self._heads, width) for part in self._parts])
        return torch.cat(came, dim=2).unbind()

    def to_tokens(self, attended: Tensor) -> Tensor:
        mine = (self._stretch.batch, self._parts[self._channel.place], self._heads, self._stretch.width)
        return torch.cat(self._exchange(attended.split(self._parts, dim=1), [mine] * len(self._parts)), dim=2)

    def whole(self, hidden: Tensor) -> Tensor:
        shapes = [(self._stretch.batch, part, hidden.shape[2]) for part in self._parts]
        return torch.cat(self._exchange([hidden] * len(self._parts), shapes), dim=1)

    def give_up(self) -> None:
        """Make the turns that are left with nothing to say."""
        stretch, mine = self._stretch, self._parts[self._channel.place]
        shape = (stretch.batch, mine, stretch.heads, stretch.width)
        some_tokens = torch.zeros(shape, dtype=stretch.dtype, device=stretch.device)
        some_heads = some_tokens.new_zeros(stretch.batch, stretch.tokens, self._heads, stretch.width)
        while self._left > 1:
            if self._left % 2:
                self.to_heads(some_tokens, some_tokens, some_tokens)
            else:
                self.to_tokens(some_heads)
        if self._left:
            self.whole(some_tokens.flatten(2))

    def _exchange(self, sent: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        """One tensor to each rank, and one of each of these shapes from them."""
        dtype = self._stretch.dtype
        flat = [one.contiguous().view(-1).view(torch.uint8) for one in sent if one.dtype == dtype]
        assert len(flat) == len(sent), f"a forward in {dtype} deals out {sent[0].dtype}"
        together = torch.cat(flat)
        takes = [prod(shape) * dtype.itemsize for shape in shapes]
        taken = self._channel.all_to_all(together, [len(one) for one in flat], takes)
        self._left -= 1
        return [one.view(dtype).view(shape) for one, shape in zip(taken.split(takes), shapes, strict=True)]
