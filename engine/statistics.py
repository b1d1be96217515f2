"""The engine as seen from outside: whether work would move, and how much of everything there is."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from cards.roles import roles_of
from cards.wire import CacheUse, Fetched, Heartbeat, Weights
from engine.engine import Engine


class Readiness(Struct, frozen=True):
    ready: bool
    reasons: tuple[str, ...]


class EngineStatistics(Struct, frozen=True):
    """A snapshot, in the field's words."""

    workers: int
    active_jobs: int
    ready_steps: int
    outstanding_units: int
    queued_units: int
    free_credits: int
    reserved_bytes: int
    resident_tensors: int
    resident_bytes: int
    steps_completed: int
    draining: bool


class WorkerSeen(Struct, frozen=True, kw_only=True):
    """A worker as the engine sees it, last heard `heard_s` seconds ago."""

    id: str
    pool: str
    host: str
    pid: int
    models: tuple[str, ...]
    ranks: int
    outstanding: int
    draining: bool
    heard_s: float
    resident: tuple[str, ...] = ()
    """The components that are loaded, `<model>/<component>`."""
    weights: dict[str, Weights] = {}
    """What it takes to have each of its components."""
    caches: dict[str, CacheUse] = {}
    """By class."""
    serves: tuple[str, ...] = ()
    """Roles; all if there are none."""
    fetched: Fetched = Fetched()
    """What it has had of other workers."""


def workers(engine: Engine, now: float) -> list[WorkerSeen]:
    """`now` is on the monotonic clock."""
    return [
        WorkerSeen(
            id=seat.worker,
            pool=seat.hello.pool,
            host=seat.hello.host,
            pid=seat.hello.pid,
            models=tuple(model.name for model in seat.hello.models),
            ranks=seat.hello.ranks,
            outstanding=len(seat.outstanding),
            draining=seat.draining,
            heard_s=max(0.0, now - seat.heard_at),
            serves=seat.hello.serves,
            **_kept(seat.beat),
        )
        for seat in engine.fleet.seats.values()
    ]


def _kept(beat: Heartbeat | None) -> dict[str, Any]:
    kept = ("resident", "weights", "caches", "fetched")
    return {} if beat is None else {name: getattr(beat, name) for name in kept}


def servable(engine: Engine, model: str) -> bool:
    return engine.served.whole(engine.identities[model])


def readiness(engine: Engine, now: float, stall_s: float) -> Readiness:
    """`now` is on the monotonic clock. A step longer than `stall_s` looks like a stall."""
    reasons = []
    if engine.draining:
        reasons.append("stopping")
    if not engine.fleet.seats:
        reasons.append("no worker has joined")
    elif not any(seat.reachable for seat in engine.fleet.seats.values()):
        reasons.append("no worker can be reached")
    elif not any(servable(engine, model) for model in engine.registry):
        reasons.append(_lacking(engine))
    if engine.ledger.trouble:
        reasons.append(f"the store takes no writes: {engine.ledger.trouble}")
    if engine.ledger.actors and now - engine.moved_at > stall_s:
        reasons.append(f"work is queued and nothing has moved for {now - engine.moved_at:.0f} s")
    return Readiness(not reasons, tuple(reasons))


def _lacking(engine: Engine) -> str:
    """Why no model can be run from beginning to end."""
    serving = engine.fleet.serving
    for name, model in engine.identities.items():
        if serving(model):
            lacks = [role for role in roles_of(engine.registry[name].card) if not serving(model, role=role)]
            return f"no worker serves as {' or '.join(lacks)}, which {name!r} needs"
    return "no worker has the card and weights of any model here"


def caches(engine: Engine) -> Mapping[str, CacheUse]:
    """What all workers keep, by class."""
    totals: dict[str, CacheUse] = {}
    for seat in engine.fleet.seats.values():
        for name, use in (seat.beat.caches if seat.beat else {}).items():
            total = totals.setdefault(name, CacheUse())
            for field in CacheUse.__struct_fields__:
                setattr(total, field, getattr(total, field) + getattr(use, field))
    return totals


def statistics(engine: Engine) -> EngineStatistics:
    seats = list(engine.fleet.seats.values())
    beats = [seat.beat for seat in seats if seat.beat is not None]
    return EngineStatistics(
        workers=len(seats),
        active_jobs=len(engine.ledger.actors),
        ready_steps=len(engine.dispatcher.waiting()),
        outstanding_units=sum(len(seat.outstanding) for seat in seats),
        queued_units=sum(beat.queued for beat in beats),
        free_credits=sum(seat.free_credits for seat in seats),
        reserved_bytes=sum(seat.reserved_bytes for seat in seats),
        resident_tensors=sum(beat.resident_tensors for beat in beats),
        resident_bytes=sum(beat.resident_bytes for beat in beats),
        steps_completed=engine.results.steps,
        draining=engine.draining,
    )
