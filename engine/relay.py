"""What is asked of one engine and is for another to do: through the store that both have, and no other way.

A request is a stream of its own, `ask/<engine>/<name>`, of three events. Each of them goes by the version that its
writer has seen, so that of an asker who withdraws and an engine that takes the request up only one gets through. The
asker forgets the stream when it has its answer; what one that died has left is forgotten when an engine starts.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TypeAlias

import anyio
import msgspec
from msgspec import Struct

from engine.clock import Clock
from engine.errors import EngineError, NoAnswer, Overtaken, StoreTrouble
from engine.hub import Hub
from engine.refusals import Refused, refused, to_error
from store.errors import StoreError, StreamConflict
from store.journal import Append, Journal, NewEvent

log = logging.getLogger("keyframe.relay")

ASKS = "ask/"

LOOK_S = 1.0
"""How often both sides look without having heard of anything."""

PATIENCE_S = 10.0
"""How long a live engine may leave a request lying before it is withdrawn."""

Argument: TypeAlias = str | int | bool | None


class VerbAsked(Struct, frozen=True, kw_only=True, tag="verb_asked"):
    """The engine `by` wants a verb done to a job."""

    verb: str
    job: str
    arguments: dict[str, Argument]
    by: str


class VerbTakenUp(Struct, frozen=True, kw_only=True, tag="verb_taken_up"):
    """The engine that was asked is at it: too late to withdraw."""


class VerbAnswered(Struct, frozen=True, kw_only=True, tag="verb_answered"):
    """What came of it, in MessagePack, or why it was refused."""

    result: bytes = b""
    refused: Refused | None = None


Word: TypeAlias = VerbAsked | VerbTakenUp | VerbAnswered

_encode = msgspec.msgpack.Encoder().encode
_decode: "msgspec.msgpack.Decoder[Word]" = msgspec.msgpack.Decoder(Word)

Perform: TypeAlias = Callable[[VerbAsked], Awaitable[object]]


class Relay:
    """`perform` does here what another engine asks for; `others` are those with a live lease, without this one."""

    def __init__(
        self,
        journal: Journal,
        hub: Hub,
        clock: Clock,
        *,
        engine: str,
        others: Callable[[], Awaitable[Collection[str]]],
        perform: Perform,
    ) -> None:
        self._journal = journal
        self._hub = hub
        self._clock = clock
        self._engine = engine
        self._others = others
        self._perform = perform
        self._numbers = itertools.count(1)

    # -- asking -------------------------------------------------------------------------------------------------

    async def ask(self, engine: str, verb: str, job: str, arguments: dict[str, Argument]) -> bytes:
        """Have another engine do it, however long it takes, while that one is alive.

        Raises what it raises there, Overtaken if it is gone, NoAnswer, StoreTrouble.
        """
        name = f"{ASKS}{engine}/{self._engine}-{next(self._numbers)}"
        try:
            await self._say(name, 0, VerbAsked(verb=verb, job=job, arguments=arguments, by=self._engine))
            with self._hub.listen(name) as news:
                return await self._answer(engine, name, news)
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        finally:
            with anyio.CancelScope(shield=True), suppress(StoreError):  # if its caller is gone, it is withdrawn
                await self._forget(name)

    async def _answer(self, engine: str, name: str, news: asyncio.Event) -> bytes:
        withdraw_at = self._clock.monotonic() + PATIENCE_S
        while True:
            news.clear()
            alive = engine in await self._others()  # asked first: it may answer and end between the two
            match await self._last(name):
                case VerbAnswered(refused=None, result=result):
                    return result
                case VerbAnswered(refused=Refused() as refusal):
                    raise to_error(refusal)
                case VerbTakenUp() if alive:
                    pass
                case VerbAsked() if alive and self._clock.monotonic() < withdraw_at:
                    pass
                case VerbAsked() if alive:
                    if await self._withdrawn(name):
                        raise NoAnswer(engine)
                case _:
                    raise Overtaken(f"engine {engine} does not do it any more")
            with anyio.move_on_after(LOOK_S):
                await news.wait()

    async def _withdrawn(self, name: str) -> bool:
        """Whether nobody has taken it up before."""
        try:
            await self._journal.purge(name, expected=1, epoch=0)
        except StreamConflict:
            return False
        return True

    async def _forget(self, name: str) -> None:
        while (loaded := await self._journal.load(name)) is not None:
            with suppress(StreamConflict):
                await self._journal.purge(name, expected=loaded.version, epoch=loaded.epoch)

    # -- answering ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """For ever, where others write to the store: do what they ask for."""
        if not self._journal.shared:
            return
        known: set[str] = set()
        tidy = False
        async with anyio.create_task_group() as tasks:
            with self._hub.listen(f"{ASKS}{self._engine}") as news:
                while True:
                    news.clear()
                    try:
                        tidy = tidy or await self._tidied()
                        there = set(await self._journal.streams(f"{ASKS}{self._engine}/"))
                    except StoreError as error:
                        log.warning("cannot look for what others ask: %s", error)
                        there = known
                    for name in sorted(there - known):
                        tasks.start_soon(self._do, name)
                    known = there
                    with anyio.move_on_after(LOOK_S):
                        await news.wait()

    async def _tidied(self) -> bool:
        """Forget what was asked of engines that are gone, and of an earlier life of this one."""
        alive = await self._others()
        for name in await self._journal.streams(ASKS):
            if name.removeprefix(ASKS).rpartition("/")[0] not in alive:
                await self._forget(name)
        return True

    async def _do(self, name: str) -> None:
        try:
            try:
                asked = await self._last(name)
            except msgspec.DecodeError as error:
                await self._say(name, 1, VerbTakenUp())
                await self._say(name, 2, self._cannot(f"cannot read what is asked: {error}"))
                return
            if isinstance(asked, VerbAsked):
                await self._say(name, 1, VerbTakenUp())
                log.info("%s, as engine %s asks", asked.verb, asked.by, extra={"job": asked.job})
                await self._say(name, 2, await self._done(asked))
        except StreamConflict:
            pass  # it was withdrawn
        except StoreError as error:
            log.warning("cannot answer another engine: %s", error)
            await self._give_back(name)

    async def _give_back(self, name: str) -> None:
        """What was written may be on disk or not: the asker is not to wait for what may never come."""
        while True:
            with suppress(StoreError):
                return await self._forget(name)
            await self._clock.sleep(LOOK_S)

    async def _done(self, asked: VerbAsked) -> VerbAnswered:
        try:
            return VerbAnswered(result=_encode(await self._perform(asked)))
        except EngineError as error:
            return VerbAnswered(refused=refused(error))
        except (
            Exception
        ) as error:  # what an engine of another version asks for may be anything: it ends nobody's engine
            log.exception("%s, as engine %s asks, has failed", asked.verb, asked.by, extra={"job": asked.job})
            return self._cannot(f"failed at it: {type(error).__name__}: {error}")

    def _cannot(self, problem: str) -> VerbAnswered:
        return VerbAnswered(refused=refused(StoreTrouble(f"engine {self._engine} {problem}")))

    # -- the stream ---------------------------------------------------------------------------------------------

    async def _say(self, name: str, expected: int, word: Word) -> None:
        new = NewEvent(str(word.__struct_config__.tag), _encode(word))
        await self._journal.append(Append(stream=name, expected=expected, epoch=0, at=self._clock.now(), events=(new,)))

    async def _last(self, name: str) -> Word | None:
        words = await self._journal.read(name)
        return _decode.decode(words[-1].body) if words else None
