"""Transfers without a wire: one asker and the holders, each of which hears at once what the other has said."""

from collections.abc import Callable, Mapping

from workers.transfer import HolderMessage, Lender
from workers.transfer_fetcher import Fetcher

Look = Callable[[], None]


def carry(fetcher: Fetcher, holders: Mapping[str, Lender], *, now: float = 0.0, look: Look = lambda: None) -> None:
    """Until nothing is left to be said; then whoever has not answered is given up. `look` is called at every word."""
    while fetcher.busy:
        deliver(fetcher, holders, now=now, look=look)
        now += 1e-3
        fetcher.expire(now)


def deliver(fetcher: Fetcher, holders: Mapping[str, Lender], *, now: float = 0.0, look: Look = lambda: None) -> None:
    while said := _said(fetcher, holders, now):
        for address, message, frames in said:
            look()
            fetcher.heard(address, message, frames, now)


def _said(fetcher: Fetcher, holders: Mapping[str, Lender], now: float) -> list[tuple[str, HolderMessage, list[bytes]]]:
    while fetcher.outbox:
        address, asked = fetcher.outbox.popleft()
        if address in holders:
            holders[address].heard(b"asker", asked, now)
    said = []
    for address, holder in holders.items():
        while holder.outbox:
            _, message, frames = holder.outbox.popleft()
            said.append((address, message, [bytes(frame) for frame in frames]))
    return said
