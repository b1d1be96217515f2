"""The engines that work on one store, as their leases there say."""

from cards.wire import ModelIdentity
from engine import share
from store.journal import EngineRow, Journal


class Peers:
    """As `me` sees them."""

    def __init__(self, journal: Journal, me: str) -> None:
        self._journal = journal
        self._me = me

    async def live(self) -> dict[str, EngineRow]:
        """Those with a live lease, by name."""
        return {engine.name: engine for engine in await self._journal.engines() if engine.left_s > 0}

    async def others(self) -> set[str]:
        """Those with a live lease, but for this one."""
        return set(await self.live()) - {self._me}

    async def run(self, model: ModelIdentity) -> bool:
        """Whether one of the others has workers for a model."""
        return any(share.runs(engine, model) for name, engine in (await self.live()).items() if name != self._me)

    async def names(self) -> list[str]:
        """Of those that work on the store now, this one among them."""
        return sorted({self._me, *await self.live()})

    async def is_first(self) -> bool:
        """Whether what one engine should do for all is this one's to do."""
        return (await self.names())[0] == self._me
