"""The engine's words as the public JSON. Pure."""

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

from msgspec import UNSET, structs

from api import schema
from cards.card import REQUEST, ModelCard
from cards.wire import ArtifactRef
from engine import views
from engine.collect import Collected
from engine.job import Failure, Job, State
from engine.operate import Migration, Operated
from engine.statistics import WorkerSeen
from engine.views import StepTensors, Told


def location(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def job(job: Job, cards: Mapping[str, ModelCard], held_up: str | None) -> schema.Job:
    """`cards` are those the engine has, by digest; a job of a card that is gone shows no node."""
    request = job.request
    return schema.Job(
        id=job.id,
        status=views.status(job),
        model=request.model,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        seed=request.seed,
        steps=request.steps,
        guidance=request.guidance,
        size=request.size,
        frames=request.frames,
        inputs=_inputs(job),
        preview_every=request.preview_every,
        priority=request.priority,
        metadata=request.metadata,
        interceptors=request.interceptors,
        tenant=request.tenant,
        deadline_s=request.deadline_s,
        created_at=job.submitted_at,
        progress=progress(job, cards.get(job.model.card)),
        artifacts=[_artifact(job.id, ref) for ref in job.artifacts.values()],
        warnings=[schema.Warning(notice.code, notice.field, notice.message) for notice in job.notices],
        error=None if job.failure is None else _failure(job.failure),
        held_up=held_up,
        reason=job.reason if job.reason and job.state in (State.PAUSED, State.QUARANTINED) else None,
        attempt=job.attempt,
        parent=None if job.parent is None else schema.Parent(job.parent.job, job.parent.at_step),
        continues=request.continues,
        pool=job.pool,
        owner=job.owner,
        pins=job.pins,
        exact=job.exact,
        card=job.model.card,
        weights=job.model.weights,
        loras=request.loras,
    )


def _inputs(job: Job) -> dict[str, str]:
    came = f"{REQUEST}."
    return {name.removeprefix(came): ref.digest for name, ref in job.outputs.items() if name.startswith(came)}


def progress(job: Job, card: ModelCard | None) -> schema.Progress:
    place = job.place
    if card is None:
        return schema.Progress(None, place.step, place.steps, 0.0)
    nodes = card.program.nodes
    within = place.step / place.steps if place.steps else 0.0
    node = nodes[place.index].name if place.index < len(nodes) else None
    return schema.Progress(node, place.step, place.steps, (place.index + within) / len(nodes))


def summary(row: views.JobRow) -> schema.JobSummary:
    return schema.JobSummary(
        id=row.id,
        status=_status(row.status),
        model=row.model,
        priority=row.priority,
        created_at=row.submitted_at,
        updated_at=row.updated_at,
    )


def operated(operated: Operated) -> schema.Operated:
    return schema.Operated(operated.job.id, cast(Any, operated.outcome.value), views.status(operated.job))


def migration(moved: Migration) -> schema.Migration:
    return schema.Migration(
        id=moved.job,
        outcome=moved.outcome.value,
        origin=moved.origin,
        to=moved.destination,
        node=moved.node,
        step=moved.step,
        bytes=moved.nbytes,
    )


def worker(seen: WorkerSeen) -> schema.Worker:
    return schema.Worker(**structs.asdict(seen))


def event(told: Told) -> schema.Event:
    return schema.Event(told.position, told.version, told.at, told.type, told.event)


def checkpoint(step: StepTensors) -> schema.Checkpoint:
    return schema.Checkpoint(step.loop, step.step, {name: ref.digest for name, ref in step.tensors.items()})


def model(card: ModelCard, servable: bool) -> schema.Model:
    steps = card.recipe.steps
    return schema.Model(
        id=card.name,
        task=card.task,
        card=card.digest,
        family=card.family,
        steps=schema.Steps(int(steps.least), int(steps.most), int(steps.default)),
        guidance=card.recipe.guidance,
        output=card.output,
        inputs={} if card.inputs is UNSET else card.inputs,
        servable=servable,
    )


def _artifact(job_id: str, ref: ArtifactRef) -> schema.Artifact:
    url = f"{location(job_id)}/artifacts/{quote(ref.name, safe='')}"
    return schema.Artifact(ref.name, ref.media_type, ref.nbytes, ref.digest, url)


def _failure(failure: Failure) -> schema.Failure:
    return schema.Failure(failure.kind, failure.message, failure.node, failure.step, failure.attempt)


def _status(word: str) -> schema.Status:
    return cast(schema.Status, word)


def accepted(job: Job) -> schema.Accepted:
    return schema.Accepted(id=job.id, status=views.status(job))


def collected(done: Collected) -> schema.Collected:
    return schema.Collected(
        purged=done.purged,
        inline_blobs=done.inline.blobs,
        inline_bytes=done.inline.nbytes,
        stored_blobs=done.stored.blobs,
        stored_bytes=done.stored.nbytes,
        live_blobs=done.live,
    )
