"""`engine models parity NAME`: a job through the engine and the reference beside it, compared byte by byte."""

from collections.abc import Mapping
from importlib import import_module
from random import Random
from typing import Any

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from api.jobs import IMAGE, read_loras
from api.requests import LoraFile
from cards import codec, registry
from cards.errors import NoReference
from cards.family import Family, Referenced
from cards.given import Given, picture
from cards.registry import Families
from cards.request import GenerationRequest, ResolvedRequest
from cards.wire import ModelIdentity
from engine import intake, parity
from engine.clock import WallClock
from engine.job import Job, State
from engine.parity import Digests, ParityMeasured, measured, record
from ops.errors import JobEnded, OpsError
from ops.models import families_of
from ops.serve import running
from ops.settings import Settings
from ops.whereabouts import running_engine
from store.open import open_journal


async def measure(
    settings: Settings, model: str, asked: Mapping[str, Any], image: bytes | None = None
) -> ParityMeasured:
    """Run both and write down what was found. `asked` are fields of a request's body.

    Raises UnknownModel, UnusableModel, InvalidRequest, NoReference, OpsError, StoreError.
    """
    families = registry.needed(families_of(settings), model)
    family = families[model]
    reference = _referenced(families, model)
    request, given = await anyio.to_thread.run_sync(_checked, family, asked, image)
    await _check_free(settings)
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


def _checked(
    family: Family, asked: Mapping[str, Any], image: bytes | None
) -> tuple[GenerationRequest, dict[str, Given]]:
    """Refused before any engine starts; only what is continued is for the engine to find. Raises InvalidRequest."""
    request, given = _read(family.card.name, asked, image)
    if request.continues is None:
        intake.notices_of(intake.alone(request, family.card, given, Random()), family, given)
    return request, given


async def _check_free(settings: Settings) -> None:
    """Raises OpsError if an engine serves the data folder: it holds the store, and may compute on another device."""
    if (there := await anyio.to_thread.run_sync(running_engine, settings)) is not None:
        own = "parity runs an engine of its own, on the CPU"
        raise OpsError(f"the engine with pid {there.pid} serves {settings.data} at {there.url}: stop it first; {own}")


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


def _referenced(families: Families, model: str) -> Referenced:
    """The family; or the module of `training` that its card names, which no card knows. Raises NoReference."""
    card = families[model].card
    name = card.parity.reference
    found: object = import_module(name) if name.startswith("training.") else families[model]
    if not isinstance(found, Referenced):
        raise NoReference(model, f"its card names {name}")
    for stage, of in (card.stages or {}).items():
        if not isinstance(families[of.model], Referenced):
            raise NoReference(model, f"its {stage}, {of.model}, has none")
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
