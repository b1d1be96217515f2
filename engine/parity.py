"""What was measured of a model against its reference: a stream `parity/<model>` in the log."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
from msgspec import Struct

from cards.reference import at
from cards.request import ResolvedRequest
from cards.wire import ModelIdentity
from engine.job import Job
from engine.views import StepTensors
from store.journal import Append, Journal, NewEvent

TYPE = "parity_measured"

Digests: TypeAlias = Mapping[str, str]
"""By the names that a reference has for it: what was made."""


class ParityMeasured(Struct, frozen=True, kw_only=True):
    """One job beside its reference on one machine.

    `outputs` says of each output, and of what single steps left (`denoise.latent@3`), whether its bytes were equal.
    """

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


def made(job: Job, steps: Iterable[StepTensors]) -> Digests:
    """All outputs of a job, and all that its steps left."""
    left = {at(f"{one.loop}.{name}", one.step): ref.digest for one in steps for name, ref in one.tensors.items()}
    return {name: ref.digest for name, ref in job.outputs.items()} | left


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
