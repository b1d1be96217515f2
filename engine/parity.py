"""What was measured of a model against its reference: a stream `parity/<model>` in the log."""

import msgspec
from msgspec import Struct

from cards.request import ResolvedRequest
from cards.wire import ModelIdentity
from store.journal import Append, Journal, NewEvent

TYPE = "parity_measured"


class ParityMeasured(Struct, frozen=True, kw_only=True):
    """One job beside its reference on one machine. `outputs` says of each output whether its bytes were equal."""

    model: ModelIdentity
    request: ResolvedRequest
    job: str
    reference: str
    rung: str
    """The one on the ladder C0 to C4 that was held; empty if an output differed."""
    fingerprint: str
    outputs: dict[str, bool]
    measured_at: float

    @property
    def equal(self) -> bool:
        return all(self.outputs.values())


async def record(journal: Journal, measured: ParityMeasured) -> None:
    """Raises StoreUnavailable, and StreamConflict if another run of the same model ends at the same moment."""
    stream = _stream(measured.model.name)
    there = await journal.load(stream)
    event = NewEvent(TYPE, msgspec.msgpack.encode(measured))
    version = there.version if there is not None else 0
    await journal.append(Append(stream=stream, expected=version, epoch=0, at=measured.measured_at, events=(event,)))


async def measured(journal: Journal, model: str) -> list[ParityMeasured]:
    """All that was measured of a model, the oldest first; of other weights too, which their identity tells."""
    found = []
    after = 0
    while page := await journal.read(_stream(model), after=after):
        after = page[-1].position
        found += [msgspec.msgpack.decode(event.body, type=ParityMeasured) for event in page]
    return found


def _stream(model: str) -> str:
    return f"parity/{model}"
