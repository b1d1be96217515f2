"""The chains of all streams of a store, beside engines at work: what they write meanwhile is no break."""

from collections import defaultdict
from collections.abc import AsyncIterator

from msgspec import Struct

from engine.actor import stream as stream_of
from engine.check import at_rest
from engine.errors import AlteredLog, JobNotFound
from store.chain import Chain, broken
from store.journal import Event, Journal

PAGE = 1000

HEADS = 500


class Audit(Struct, frozen=True):
    """`broken` says of each stream that is not sound where it breaks first."""

    streams: int
    events: int
    broken: dict[str, str]


async def audit(journal: Journal) -> Audit:
    """One pass over the log in its order; what then does not end where its head is, is looked at again by itself."""
    chains: defaultdict[str, Chain] = defaultdict(Chain)
    count = 0
    async for event in everything(journal):
        chains[event.stream].follow(event)
        count += 1
    async for stream in _named(journal):
        chains[stream]  # one with a head and no events
    suspects = [stream async for stream in _suspects(journal, chains)]
    found = {stream: problem for stream in suspects if (problem := await audit_stream(journal, stream))}
    return Audit(len(chains), count, found)


async def audit_stream(journal: Journal, stream: str) -> str | None:
    """Where it breaks first, or None; None also for one that is not there, or about to go."""
    events, head = await at_rest(journal, stream)
    if head is None and (not events or stream in await journal.purging()):
        return None
    return broken(events, head)


async def sound_log(journal: Journal, job_id: str) -> list[Event]:
    """All events of a job, for whoever tells of them. Raises JobNotFound, and AlteredLog if its chain is broken."""
    events, head = await at_rest(journal, stream_of(job_id))
    if head is None and (not events or stream_of(job_id) in await journal.purging()):
        raise JobNotFound(job_id)
    if problem := broken(events, head):
        raise AlteredLog(job_id, problem)
    return events


async def everything(journal: Journal, after: int = 0) -> AsyncIterator[Event]:
    """All events of all streams, in the order in which they were committed."""
    while page := await journal.read_all(after=after, limit=PAGE):
        for event in page:
            yield event
        after = page[-1].position


async def _named(journal: Journal) -> AsyncIterator[str]:
    after = ""
    while page := await journal.streams("", after=after, limit=PAGE):
        for stream in page:
            yield stream
        after = page[-1]


async def _suspects(journal: Journal, chains: dict[str, Chain]) -> AsyncIterator[str]:
    names = sorted(chains)
    for first in range(0, len(names), HEADS):
        some = names[first : first + HEADS]
        heads = await journal.load_many(some)
        for stream in some:
            if chains[stream].broken(heads.get(stream)):
                yield stream
