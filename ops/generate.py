"""`engine generate`: one clip or picture, from a prompt to a file, with its progress on the screen.

An engine that already serves the data folder is used; otherwise one runs here for as long as it takes. Killed half-way
and called again with the same words, it finds its job in the log and goes on.
"""

import base64
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cards.given import picture
from cards.registry import Registry, find
from ops import loras
from ops.errors import BadSettings, JobEnded, NoEngine, OpsError
from ops.models import families_of
from ops.remote import JobObject, Remote, connect
from ops.serve import running
from ops.settings import Settings
from ops.whereabouts import running_engine

console = Console(stderr=True)


DEFAULT_OUT = Path("out/clip")


async def generate(
    request: dict[str, Any], out: Path | None, settings: Settings, server: str | None, image: bytes | None = None
) -> list[Path]:
    """Returns the files written, `out` first. Raises JobEnded, OpsError, CardError."""
    if out is None:
        out = DEFAULT_OUT
    elif server is None:
        _check_out(out, families_of(settings), request["model"])
    inputs = {} if image is None else {"image": picture("image", image).ref.digest}
    body = request if image is None else request | {"image": base64.b64encode(image).decode()}
    while True:
        try:
            async with _engine(settings, server) as url, connect(url, elsewhere=server is not None) as remote:
                there = await unfinished(remote, request | {"inputs": inputs}) if server is None else None
                return await _generate(remote, there, body, out)
        except NoEngine:
            if server is not None:
                raise  # the engine of another call has served this folder and is gone: the log has the job


async def _generate(remote: Remote, job: JobObject | None, request: dict[str, Any], out: Path) -> list[Path]:
    """`job` is one that an earlier call with this request left behind."""
    if job is None:
        job = await remote.submit(request)
    else:
        console.print(f"going on with {job['id']}")
    for warning in job["warnings"]:
        console.print(f"{warning['field']}: {warning['message']}", style="yellow", markup=False)
    await _show_progress(remote, job, out)
    return await _save(remote, await remote.job(job["id"]), out)


@asynccontextmanager
async def _engine(settings: Settings, server: str | None) -> AsyncIterator[str]:
    if server is not None:
        yield server
    elif (there := await anyio.to_thread.run_sync(running_engine, settings)) is not None:
        yield there.url
    else:
        async with running(settings) as serving:
            yield serving.url
            await serving.engine.drain(settings.grace_s)


async def unfinished(remote: Remote, request: dict[str, Any]) -> JobObject | None:
    """One that an earlier call with this request left behind in this folder. On a server it might be anyone's."""
    request = loras.as_shown(request)
    for status in ("queued", "running"):  # in the order in which a job goes through them, so that none is missed
        for row in await remote.jobs(status=status, limit=1000):
            job = await remote.job(row["id"])
            if _is_of(job, request):
                return job
    return None


def _is_of(job: JobObject, request: dict[str, Any]) -> bool:
    """A job that continues another has that one's outputs beside what came with the request."""
    shown = job if "continues" not in request else job | {"inputs": _those(job["inputs"], request["inputs"])}
    return all(shown.get(field) == value for field, value in request.items())


def _those(inputs: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: inputs[name] for name in names if name in inputs}


async def _show_progress(remote: Remote, job: JobObject, out: Path) -> None:
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[preview]}"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("queued", total=None, pace="", preview="")
        async for event in remote.events(job["id"]):
            fact = event["data"]
            match event["type"]:
                case "node_started":
                    progress.update(bar, description=fact["node"], total=fact["steps"], completed=0, pace="")
                case "step_completed":
                    progress.update(bar, completed=fact["step"] + 1, pace=f"{fact['seconds']:.2f} s/step")
                    if any(artifact["name"] == "preview.png" for artifact in fact["artifacts"]):
                        path = out.with_suffix(".preview.png")
                        await _download(remote, job["id"], "preview.png", path)
                        progress.update(bar, preview=f"preview {path}")
                case "worker_lost":
                    lost = f"a worker was lost ({fact['reason']}); going on elsewhere"
                    progress.console.print(lost, style="yellow", markup=False)


async def _save(remote: Remote, job: JobObject, out: Path) -> list[Path]:
    if job["status"] != "completed":
        error = job["error"] or {"class": job["status"], "message": "the job did not complete"}
        raise JobEnded(f"{job['id']} {job['status']}: {error['class']}: {error['message']}")
    placed = places([artifact["name"] for artifact in job["artifacts"]], out)
    for name, path in placed.items():
        await _download(remote, job["id"], name, path)
    return sorted(placed.values(), key=lambda path: path != out)


def places(artifacts: Iterable[str], out: Path) -> dict[str, Path]:
    """Where artifacts go: each to `out` with its own suffix, a second one of a suffix with its name before it."""
    placed: dict[str, Path] = {}
    for name in artifacts:
        if not name.startswith("preview."):  # it was shown, and is there
            path = out.with_suffix(Path(name).suffix)
            placed[name] = path if path not in placed.values() else out.with_suffix(f".{name}")
    return placed


def _check_out(out: Path, families: Registry, model: str) -> None:
    """Raises BadSettings unless the file is one of the kind that the model makes first of all."""
    suffix = Path(find(families, model).card.program.artifacts[0]).suffix
    if out.suffix != suffix:
        raise BadSettings(f"out: {out} must end in {suffix}, as what {model} makes; anything else goes beside it")


async def _download(remote: Remote, job: str, name: str, path: Path) -> None:
    data = await remote.artifact(job, name)
    try:
        await anyio.Path(path.parent).mkdir(parents=True, exist_ok=True)
        await anyio.Path(path).write_bytes(data)
    except OSError as error:
        raise OpsError(f"cannot write {path}: {error.strerror}; the clip is kept as job {job}") from error
