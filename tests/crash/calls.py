"""What scripts ask of a store. Each gives a call that can be made on any store, in memory too."""

import random
import time
from collections.abc import Sequence
from typing import Any

from cards import registry
from cards.request import resolve
from engine import events as facts
from engine.actor import replay, stream
from engine.events import JobEvent
from engine.views import row
from store.blobs import digest_of
from store.chain import link
from store.journal import Append, Blob, Checkpoint, Event, IdempotencyKey, JobRow, NewEvent, StreamCopy
from tests import toy
from tests.crash.checker import KEYS, SMALL
from tests.crash.script import Call, Store
from tests.sim import request

AT = 1.5


def append(stream: str, expected: int, *bodies: bytes, **fields: Any) -> Call:
    events = tuple(NewEvent("happened", body) for body in bodies)
    append = Append(stream=stream, expected=expected, events=events, **{"epoch": 0, "at": AT} | fields)
    return lambda store: store.journal.append(append)


def adopt(stream: str, *bodies: bytes) -> Call:
    events: list[Event] = []
    hash = b""
    for version, body in enumerate(bodies, start=1):
        hash = link(hash, stream, version, 0, "happened", AT, body)
        events.append(Event(0, stream, version, 0, "happened", AT, body, hash))
    copy = StreamCopy(
        stream=stream,
        version=len(events),
        epoch=0,
        hash=hash,
        events=tuple(events),
        checkpoint=Checkpoint(len(events), b"saved"),
        blobs=small(0),
    )
    return lambda store: store.journal.adopt(copy)


def put(data: bytes) -> Call:
    async def call(store: Store) -> str:
        return store.blobs.put(data)

    return call


def sweep(*live: bytes) -> Call:
    """Of what is not live nothing is young enough to stay."""

    async def call(store: Store) -> None:
        store.blobs.sweep({digest_of(data) for data in live}, grace_s=-60, now=time.time())

    return call


def hold_lease(engine: str) -> Call:
    return lambda store: store.journal.hold_lease(engine, ttl_s=600, url=f"http://{engine}", models=["toy"])


def end_lease(engine: str) -> Call:
    return lambda store: store.journal.end_lease(engine)


def replace_rows(rows: Sequence[JobRow]) -> Call:
    return lambda store: store.journal.replace_rows(rows)


def key(number: int) -> IdempotencyKey:
    return IdempotencyKey(KEYS[number], f"fingerprint {number}")


def small(number: int) -> tuple[Blob, ...]:
    return (Blob(digest_of(SMALL[number]), SMALL[number]),)


def job(id: str, start: int, stop: int, **fields: Any) -> Call:
    """The append of a part of a job's life, as the engine makes it."""
    events = tuple(facts.encode(event) for event in life(id)[start:stop])
    append = Append(
        stream=stream(id), expected=start, events=events, row=row_of(id, stop), **{"epoch": 0, "at": AT} | fields
    )
    return lambda store: store.journal.append(append)


def row_of(id: str, version: int) -> JobRow:
    return row(replay(life(id)[:version]), AT)


def life(id: str) -> list[JobEvent]:
    family = registry.identity(toy.FAMILY)
    resolved = resolve(request(), toy.CARD, random.Random(7))
    return [
        facts.JobSubmitted(job=id, request=resolved, model=family, submitted_at=AT),
        facts.JobAdmitted(engine="engine"),
        facts.CancelRequested(reason="enough"),
        facts.JobCancelled(),
    ]
