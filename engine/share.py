"""Which of several engines takes which open job: all of them know without asking, and so none is in another's way."""

from collections.abc import Iterable, Mapping, Sequence

from blake3 import blake3

from cards.wire import ModelIdentity
from store.journal import EngineRow, JobRow


def ours(job: JobRow, me: str, engines: Sequence[EngineRow]) -> bool:
    """Whether a job that nobody drives is for `me` to take: rendezvous hashing over the live engines that can run it.

    A job that was given to an engine by name is for that one; one that nobody has workers for is shared out as well.
    """
    live = [engine for engine in engines if engine.left_s > 0]
    if job.owner == me:
        return True
    able = [engine.name for engine in live if job.model in engine.models] or [engine.name for engine in live]
    return me == max(able, key=lambda name: _weight(job.id, name), default=me)


def offers(models: Iterable[ModelIdentity]) -> list[str]:
    """What an engine's lease says that it has workers for: each model by its name, and by what exactly it is."""
    return sorted(offer for model in models for offer in (model.name, _exactly(model)))


def names(engine: EngineRow) -> tuple[str, ...]:
    """Of the models that it has workers for."""
    return tuple(offer for offer in engine.models if "@" not in offer)


def runs(engine: EngineRow, model: ModelIdentity) -> bool:
    """Whether it has workers for this card with these weights. One of an older release tells names only."""
    exact = [offer for offer in engine.models if offer.startswith(f"{model.name}@")]
    return _exactly(model) in exact if exact else model.name in engine.models


def _exactly(model: ModelIdentity) -> str:
    return f"{model.name}@{model.card[:16]}/{model.weights[:16]}"


def overdue(job: JobRow, since: Mapping[str, float], now: float, patience_s: float) -> bool:
    """Whether the engine that a job is for has had its time to take it."""
    return now - since.get(job.id, now) > patience_s


def _weight(job: str, engine: str) -> bytes:
    return blake3(f"{job}\0{engine}".encode()).digest()
