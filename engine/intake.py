"""What comes in: a request that is checked against its card and the job that it continues, and what came along.

Checks may read a tokenizer or a checkpoint's headers from a disk and walk through large files: they are done aside.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

import anyio.to_thread
from msgspec import Struct

from cards import lora
from cards.card import ModelCard
from cards.errors import InvalidRequest
from cards.family import Family
from cards.given import Given, check_inputs
from cards.request import GenerationRequest, ResolvedRequest, resolve
from cards.wire import INLINE_LIMIT, ModelIdentity, TensorRef
from engine import continuing, fork
from engine.contents import Contents
from engine.continuing import Earlier
from engine.errors import JobNotFound, StoreTrouble
from engine.events import NoticeGiven
from engine.job import Job
from store.blobs import Blobs
from store.errors import StoreError
from store.journal import Blob

T = TypeVar("T")


class Aside(Protocol):
    """Work that would keep an event loop from its other tasks, done beside it: as a rule in a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def in_a_thread(work: Callable[[], T], /) -> T:
    return await anyio.to_thread.run_sync(work)


class Checked(Struct, frozen=True):
    """A request with nothing left open, the tensors that its job begins with, and what its caller should know."""

    request: ResolvedRequest
    inputs: dict[str, TensorRef]
    notices: tuple[NoticeGiven, ...]


class Intake:
    """`find` gives jobs by id, `chance` draws the seeds that callers leave out."""

    def __init__(
        self,
        contents: Contents,
        blobs: Blobs,
        identities: Mapping[str, ModelIdentity],
        *,
        find: Callable[[str], Awaitable[Job]],
        chance: random.Random,
        aside: Aside,
    ) -> None:
        self._contents = contents
        self._blobs = blobs
        self._identities = identities
        self._find = find
        self._chance = chance
        self._aside = aside

    async def check(self, request: GenerationRequest, family: Family, given: Mapping[str, Given]) -> Checked:
        """Raises InvalidRequest, StoreTrouble."""
        resolved, taken = await self._resolve(request, family.card, given)
        notices = await self._aside(partial(notices_of, resolved, family, given))
        return Checked(resolved, {name: one.ref for name, one in given.items()} | taken, notices)

    async def store(self, given: Mapping[str, Given]) -> tuple[Blob, ...]:
        """Keep the large ones; the small ones are part of the append that makes the job. Raises StoreTrouble."""
        small = tuple(Blob(one.ref.digest, one.data) for one in given.values() if len(one.data) <= INLINE_LIMIT)
        large = [one.data for one in given.values() if len(one.data) > INLINE_LIMIT]
        try:
            for data in large:
                await anyio.to_thread.run_sync(self._blobs.put, data)
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        return small

    async def _resolve(
        self, request: GenerationRequest, card: ModelCard, given: Mapping[str, Given]
    ) -> tuple[ResolvedRequest, dict[str, TensorRef]]:
        """The request with nothing left open, and what it takes of a job that it continues."""
        if request.continues is None:
            return alone(request, card, given, self._chance), {}
        earlier = await self._earlier(request.continues, card)
        check_inputs({*given, *continuing.names(card)}, card)
        resolved = resolve(earlier.fill(request), card, self._chance)
        earlier.check(resolved, card)
        return resolved, earlier.inputs

    async def _earlier(self, job_id: str, card: ModelCard) -> Earlier:
        """A job to go on from; its outputs stay until somebody refers to them."""
        try:
            job = await self._find(job_id)
        except JobNotFound as error:
            raise InvalidRequest(continuing.FIELD, f"{error}; give the id of one that is completed") from error
        found = continuing.earlier(job, card, self._identities[card.name])
        try:
            gone = await self._contents.keep([ref.digest for ref in found.inputs.values()])
        except StoreError as error:
            raise StoreTrouble(str(error)) from error
        if gone:
            raise InvalidRequest(continuing.FIELD, f"what job {job_id} has left is no longer stored; run it again")
        return found


def alone(
    request: GenerationRequest, card: ModelCard, given: Mapping[str, Given], chance: random.Random
) -> ResolvedRequest:
    """One that continues no job: nothing of a store is needed to check it. Raises InvalidRequest."""
    check_inputs(given, card)
    return resolve(request, card, chance)


def notices_of(request: ResolvedRequest, family: Family, given: Mapping[str, Given]) -> tuple[NoticeGiven, ...]:
    """Raises InvalidRequest for what only the family can tell."""
    lora.check_files(request.loras, given, family)
    return fork.notices(request, family)
