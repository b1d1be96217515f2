"""`engine models parity NAME`: a job through the engine and the reference beside it, compared byte by byte."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from api.jobs import IMAGE, read_loras
from api.schema import LoraFile
from cards import codec, registry
from cards.errors import NoReference
from cards.family import Family, Referenced
from cards.given import Given, picture
from cards.request import GenerationRequest, ResolvedRequest
from cards.wire import ModelIdentity
from engine import parity
from engine.clock import WallClock
from engine.job import Job, State
from engine.parity import Digests, ParityMeasured, measured, record
from ops.errors import JobEnded
from ops.models import families_of
from ops.serve import running
from ops.settings import Settings
from store.open import open_journal


async def measure(
    settings: Settings, model: str, asked: Mapping[str, Any], image: bytes | None = None
) -> ParityMeasured:
    """Run both and write down what was found. `asked` are fields of a request's body.

    Raises UnknownModel, InvalidRequest, NoReference, JobEnded, StoreError.
    """
    family = registry.find(families_of(settings), model)
    reference = _referenced(family)
    request, given = _read(model, asked, image)
    job, made = await _run(settings, request, given)
    expected = await anyio.to_thread.run_sync(_expected, reference, job.request, given, settings.threads)
    found = _compared(family, job, made, expected)
    async with open_journal(settings.store_url) as journal:
        await record(journal, found)
    return found


async def known(settings: Settings, model: ModelIdentity) -> ParityMeasured | None:
    """The last that was measured of this card and these weights. Raises StoreError."""
    if settings.store_file is not None and not settings.store_file.is_file():
        return None
    async with open_journal(settings.store_url, writable=False) as journal:
        return next((one for one in reversed(await measured(journal, model.name)) if one.model == model), None)


def _read(model: str, asked: Mapping[str, Any], image: bytes | None) -> tuple[GenerationRequest, dict[str, Given]]:
    """Raises InvalidRequest."""
    files = msgspec.convert(asked.get("loras", ()), tuple[LoraFile, ...])
    loras, given = read_loras(files)
    if image is not None:
        given[IMAGE] = picture(IMAGE, image)
    return GenerationRequest(**{"model": model, **asked, "loras": loras}), given


async def _run(settings: Settings, request: GenerationRequest, given: Mapping[str, Given]) -> tuple[Job, Digests]:
    """A job to its end, and all that it made. Raises JobEnded."""
    async with running(replace(settings, port=0, device="cpu")) as serving:  # as the reference is
        client = serving.client
        job = await client.submit(request, given=given)
        async for _ in client.watch(job.id):
            pass
        job = await client.job(job.id)
        made = parity.made(job, await client.checkpoints(job.id))
        await serving.engine.drain(settings.grace_s)
    if job.state is not State.COMPLETED:
        raise JobEnded(f"{job.id} {job.state}: {job.failure.message if job.failure else job.reason}")
    return job, made


def _referenced(family: Family) -> Referenced:
    """The family; or the module of `training` that its card names, which no card knows. Raises NoReference."""
    name = family.card.parity.reference
    found: object = import_module(name) if name.startswith("training.") else family
    if not isinstance(found, Referenced):
        raise NoReference(family.card.name, f"its card names {name}")
    return found


def _expected(of: Referenced, request: ResolvedRequest, given: Mapping[str, Given], threads: int) -> Digests:
    import torch

    torch.set_num_threads(threads)
    tensors = {name: codec.decode(one.data) for name, one in given.items()}
    return {name: codec.encode(tensor)[0].digest for name, tensor in of.reference(request, tensors).items()}


def _compared(family: Family, job: Job, made: Digests, expected: Digests) -> ParityMeasured:
    outputs = {name: made.get(name) == digest for name, digest in expected.items()}
    claim = family.card.parity
    return ParityMeasured(
        model=job.model,
        request=job.request,
        job=job.id,
        reference=claim.reference,
        rung=claim.rung if all(outputs.values()) else "",
        fingerprint=job.fingerprint or "",
        outputs=outputs,
        measured_at=WallClock().now(),
    )
