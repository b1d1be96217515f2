"""Where people's verbs arrive: done here, or by the engine that drives the job, which keeps the step that it is in.

Who is overtaken by another writer looks again.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from engine.cancel import Outcome as Cancelled
from engine.clock import Clock
from engine.engine import Engine
from engine.errors import Draining, DrivenElsewhere, Overtaken, StoreTrouble
from engine.operate import Migration, Operated, Operator
from engine.past import Past
from engine.relay import Argument, Relay, VerbAsked
from store.journal import Journal

TRIES = 5

T = TypeVar("T")


class Desk:
    """Every verb raises JobNotFound, NotAllowed, Draining, StoreTrouble, HistoryError; what it returns is durable."""

    def __init__(self, engine: Engine, journal: Journal, past: Past, clock: Clock) -> None:
        self._engine = engine
        operator = Operator(engine, past, clock)
        self._here: Mapping[str, Callable[..., Awaitable[object]]] = {
            "pause": operator.pause,
            "resume": operator.resume,
            "cancel": engine.canceller.cancel,
            "terminate": operator.terminate,
            "quarantine": operator.quarantine,
            "retry": operator.retry,
            "lift": operator.lift,
            "rewind": operator.rewind,
            "pin": operator.pin,
            "unpin": operator.unpin,
            "migrate": operator.migrate,
            "move_away": operator.move_away,
        }
        self._relay = Relay(
            journal,
            engine.requests,
            clock,
            engine=engine.settings.name,
            others=engine.peers.others,
            perform=self._perform,
        )
        engine.duties.append(self._relay.serve)

    async def pause(self, job_id: str, reason: str = "") -> Operated:
        return await self._do(Operated, "pause", job_id, reason=reason)

    async def resume(self, job_id: str) -> Operated:
        return await self._do(Operated, "resume", job_id)

    async def cancel(self, job_id: str, reason: str = "") -> Cancelled:
        return await self._do(Cancelled, "cancel", job_id, reason=reason)

    async def terminate(self, job_id: str, reason: str = "") -> Operated:
        return await self._do(Operated, "terminate", job_id, reason=reason)

    async def quarantine(self, job_id: str, reason: str = "") -> Operated:
        return await self._do(Operated, "quarantine", job_id, reason=reason)

    async def retry(self, job_id: str, reason: str = "") -> Operated:
        """Raises TensorsGone, Unrunnable and LoopFailed too."""
        return await self._do(Operated, "retry", job_id, reason=reason)

    async def lift(self, job_id: str) -> Operated:
        """Raises as `retry`."""
        return await self._do(Operated, "lift", job_id)

    async def rewind(self, job_id: str, to_step: int, reason: str = "") -> Operated:
        """Raises NoSuchStep too, and as `retry`."""
        return await self._do(Operated, "rewind", job_id, to_step=to_step, reason=reason)

    async def pin(self, job_id: str, step: int, reason: str = "") -> Operated:
        """What a step left stays, whatever retention lets go of. Raises NoSuchStep, and as `retry`."""
        return await self._do(Operated, "pin", job_id, step=step, reason=reason)

    async def unpin(self, job_id: str, step: int) -> Operated:
        return await self._do(Operated, "unpin", job_id, step=step)

    async def migrate(
        self,
        job_id: str,
        *,
        pool: str | None = None,
        engine: str | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> Migration:
        """To a pool or to an engine, once the step that is running is done. Raises NoSuchPlace too."""
        asked: dict[str, Argument] = {"pool": pool, "engine": engine, "reason": reason, "dry_run": dry_run}
        return await self._do(Migration, "migrate", job_id, **asked)

    async def move_away(self, job_id: str, version: int, to: str) -> Operated:
        """Its log up to `version` has been written to a file, and goes on in another store. Raises GoneOn too."""
        return await self._do(Operated, "move_away", job_id, version=version, to=to)

    async def _do(self, kind: type[T], verb: str, job_id: str, **arguments: Argument) -> T:
        for _ in range(TRIES):
            with suppress(Overtaken):
                return await self._once(kind, verb, job_id, arguments)
        raise StoreTrouble(f"others write to the log of job {job_id} at the same time; ask again")

    async def _once(self, kind: type[T], verb: str, job_id: str, arguments: dict[str, Argument]) -> T:
        """Raises Overtaken too."""
        try:
            done = await self._here[verb](job_id, **arguments)
            assert isinstance(done, kind)
            return done
        except DrivenElsewhere as elsewhere:
            engine = elsewhere.engine
        answer = await self._relay.ask(engine, verb, job_id, arguments)
        try:
            return msgspec.msgpack.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise StoreTrouble(
                f"engine {engine} has done it and answers in words of another version: {error}"
            ) from error

    async def _perform(self, asked: VerbAsked) -> object:
        """What another engine asks for, if this is the one to do it. Raises as the verb does, and Overtaken."""
        if asked.verb not in self._here:
            raise StoreTrouble(f"engine {asked.by} asks for {asked.verb!r}, which this older one cannot do")
        if self._engine.draining:
            raise Draining
        return await self._here[asked.verb](asked.job, **asked.arguments)
