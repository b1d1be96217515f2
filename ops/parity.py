"""`engine models parity NAME`: a job through the engine, the reference beside it, each output compared by its bytes."""

from collections.abc import Mapping
from typing import Any

import anyio.to_thread
from msgspec.structs import replace

from cards import codec, registry
from cards.family import Family, Referenced
from cards.request import GenerationRequest, ResolvedRequest
from cards.wire import ModelIdentity
from engine.clock import WallClock
from engine.job import Job, State
from engine.parity import ParityMeasured, measured, record
from ops.errors import JobEnded, OpsError
from ops.models import families_of
from ops.serve import running
from ops.settings import Settings
from store.open import open_journal


async def measure(settings: Settings, model: str, fields: Mapping[str, Any]) -> ParityMeasured:
    """Run both and write down what was found. Raises UnknownModel, InvalidRequest, JobEnded, OpsError, StoreError."""
    family = registry.find(families_of(settings), model)
    if not isinstance(family, Referenced) or not family.card.parity.reference.startswith("diffusers."):
        raise OpsError(f"{model} has no reference that runs here; its card names {family.card.parity.reference}")
    if family.card.inputs and any(spec.required for spec in family.card.inputs.values()):
        raise OpsError(
            f"{model} takes more than words ({', '.join(family.card.inputs)}), which this command cannot give it"
        )
    async with running(replace(settings, port=0)) as serving:
        client = serving.client
        job = await client.submit(GenerationRequest(model=model, **fields))
        async for _ in client.watch(job.id):
            pass
        job = await client.job(job.id)
        await serving.engine.drain(settings.grace_s)
    if job.state is not State.COMPLETED:
        raise JobEnded(f"{job.id} {job.state}: {job.failure.message if job.failure else job.reason}")
    expected = await anyio.to_thread.run_sync(_reference, family, job.request, settings.threads)
    found = _compared(family, job, expected)
    async with open_journal(settings.store_url) as journal:
        await record(journal, found)
    return found


async def known(settings: Settings, model: ModelIdentity) -> ParityMeasured | None:
    """The last that was measured of this card and these weights. Raises StoreError."""
    if settings.store_file is not None and not settings.store_file.is_file():
        return None
    async with open_journal(settings.store_url, writable=False) as journal:
        return next((one for one in reversed(await measured(journal, model.name)) if one.model == model), None)


def _reference(family: Referenced, request: ResolvedRequest, threads: int) -> dict[str, str]:
    import torch

    torch.set_num_threads(threads)
    return {name: codec.encode(tensor)[0].digest for name, tensor in family.reference(request).items()}


def _compared(family: Family, job: Job, expected: Mapping[str, str]) -> ParityMeasured:
    outputs = {name: name in job.outputs and job.outputs[name].digest == digest for name, digest in expected.items()}
    parity = family.card.parity
    return ParityMeasured(
        model=job.model,
        request=job.request,
        job=job.id,
        reference=parity.reference,
        rung=parity.rung if all(outputs.values()) else "",
        fingerprint=job.fingerprint or "",
        outputs=outputs,
        measured_at=WallClock().now(),
    )
