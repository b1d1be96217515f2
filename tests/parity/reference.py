"""What a parity test does: a family's job through the real engine, and its reference beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from torch import Tensor

from cards import codec, registry
from cards.family import Family, Referenced
from cards.given import Given
from cards.model import Model
from cards.request import GenerationRequest
from engine import parity
from engine.job import Job, State
from tests.sim import Running, World

Digests = dict[tuple[str, int], dict[str, str]]
"""By node and step, what it left: name -> digest."""


class Outcome(Struct, frozen=True):
    job: Job
    steps: Digests
    made: parity.Digests
    """The same and the outputs, by the names that a reference has for them."""

    def of(self, expected: parity.Digests) -> parity.Digests:
        """What was made of all that is expected."""
        return {name: digest for name, digest in self.made.items() if name in expected}

    def last(self, node: str) -> dict[str, str]:
        return self.steps[max(key for key in self.steps if key[0] == node)]


def family(folder: Path, precision: str, name: str = "tiny", **options: str) -> Family:
    opened = registry.open_model(Model(name=name, folder=str(folder), precision=precision, options=options))  # type: ignore[arg-type]
    opened.card.validate()
    return opened


async def run(
    family: Family, request: Mapping[str, Any], world: World | None = None, given: Mapping[str, Given] = {}
) -> Outcome:
    """One job from submission to its end."""
    async with (world or World(families=(family,))).engine() as running:
        return await outcome(running, family, request, given)


async def outcome(
    running: Running, family: Family, request: Mapping[str, Any], given: Mapping[str, Given] = {}
) -> Outcome:
    submitted = await running.client.submit(GenerationRequest(model=family.card.name, **request), given=given)
    return await ended(running, submitted.id)


async def ended(running: Running, job_id: str) -> Outcome:
    job = await running.ended(job_id, within_s=120.0)
    assert job.state is State.COMPLETED, job.failure
    steps = await running.client.checkpoints(job.id)
    found = {(one.loop, one.step): {name: ref.digest for name, ref in one.tensors.items()} for one in steps}
    return Outcome(job, found, parity.made(job, steps))


def expected(family: Family, job: Job, given: Mapping[str, Given] = {}) -> parity.Digests:
    """What the family's reference makes of a job's request."""
    assert isinstance(family, Referenced)
    tensors = {name: codec.decode(one.data) for name, one in given.items()}
    return {name: digest(tensor) for name, tensor in family.reference(job.request, tensors).items()}


def digest(tensor: Tensor) -> str:
    return codec.encode(tensor)[0].digest
