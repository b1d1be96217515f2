"""A job as one file: its log, its last checkpoint and the bytes they name. Any store can take it in and go on.

A tar of `blobs/<digest>`, the events, the checkpoint and, last, `manifest.json`. What is taken in is checked as
if it came from a stranger: every hash of the chain, every digest, and that the log folds.
"""

import io
import os
import secrets
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cards.registry import Families
from cards.wire import INLINE_LIMIT, ModelIdentity
from engine import course, driver
from engine import events as facts
from engine.actor import Saved, replay, restore, saved_body, stream
from engine.check import at_rest, history
from engine.contents import Contents
from engine.errors import AlteredLog, BadBundle, EngineError, HistoryError, JobExists, JobNotFound, Unrunnable
from engine.events import JobImported, JobResumed, StepCompleted
from engine.job import Job, State
from engine.needs import needs
from engine.views import row
from store.blobs import Blobs, Disk, digest_of
from store.chain import broken, link
from store.errors import MissingBlob, StreamConflict
from store.journal import Blob, Checkpoint, Event, Journal, Loaded, StreamCopy

FORMAT = 1

MANIFEST, EVENTS, CHECKPOINT, BLOBS = "manifest.json", "events.msgpack", "checkpoint.msgpack", "blobs/"


class Manifest(Struct, frozen=True, kw_only=True):
    """What the bundle holds. `moved` says that the store it is from is to let go of the job; `origin` names that store.

    `resumes` says that the job was paused for the way only. `absent` counts tensors of old steps whose bytes were no
    longer stored; nothing that the job needs is among them.
    """

    format: int = FORMAT
    job: str
    model: ModelIdentity
    version: int
    epoch: int
    hash: bytes
    origin: str
    moved: bool
    resumes: bool = False
    absent: int = 0


class Bundle(Struct, frozen=True):
    """One that was read. Its blobs are still in the file."""

    manifest: Manifest
    events: tuple[Event, ...]
    checkpoint: Checkpoint | None


# -- out ----------------------------------------------------------------------------------------------------------


async def export(
    journal: Journal,
    contents: Contents,
    job_id: str,
    file: Path,
    *,
    origin: str,
    moved: bool = False,
    resumes: bool = False,
) -> Manifest:
    """Write a job as it is now. The file is whole and on disk, or it is not there.

    Raises JobNotFound, HistoryError, MissingBlob, CorruptBlob, StoreUnavailable, OSError.
    """
    events, loaded = await at_rest(journal, stream(job_id))
    if loaded is None:
        raise JobNotFound(job_id)
    if problem := broken(events, loaded):
        raise AlteredLog(job_id, problem)
    saved = restore(loaded)
    needed, wished = _named(saved, events)
    manifest = Manifest(
        job=job_id,
        model=saved.job.model,
        version=loaded.version,
        epoch=loaded.epoch,
        hash=loaded.hash,
        origin=origin,
        moved=moved,
        resumes=resumes,
    )
    with _written(file) as tar:
        for digest in needed:
            await _add_blob(tar, contents, digest, optional=False)
        absent = [digest for digest in wished if not await _add_blob(tar, contents, digest, optional=True)]
        manifest = replace(manifest, absent=len(absent))
        _add(tar, EVENTS, msgspec.msgpack.encode(events))
        if loaded.checkpoint is not None:
            _add(tar, CHECKPOINT, msgspec.msgpack.encode(loaded.checkpoint))
        _add(tar, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    return manifest


def _named(saved: Saved, events: Sequence[Event]) -> tuple[list[str], list[str]]:
    """The digests without which the job is not whole, and those of its other steps."""
    needed = dict.fromkeys([*needs(saved.job, saved.state, saved.refolds), *saved.job.lasting])
    steps = [fact for event in events if isinstance(fact := facts.decode(event), StepCompleted)]
    others = dict.fromkeys(digest for step in steps for digest in facts.made(step))
    return list(needed), [digest for digest in others if digest not in needed]


async def _add_blob(tar: tarfile.TarFile, contents: Contents, digest: str, *, optional: bool) -> bool:
    """Whether it was there."""
    try:
        data = await contents.get(digest)
    except MissingBlob:
        if optional:
            return False
        raise
    await anyio.to_thread.run_sync(_add, tar, f"{BLOBS}{digest}", data)
    return True


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


@contextmanager
def _written(file: Path) -> Iterator[tarfile.TarFile]:
    """A new file under another name, which gets its own once all of it is on disk."""
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")  # two may write it at once
    try:
        with part.open("wb") as raw:
            with tarfile.open(fileobj=raw, mode="w") as tar:
                yield tar
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(file)
        Disk().sync_folder(file.absolute().parent)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


# -- in -----------------------------------------------------------------------------------------------------------


async def take_in(journal: Journal, blobs: Blobs, registry: Families, file: Path, *, at: float) -> Job:
    """Keep a bundle's job in this store: from then on an engine here goes on with it, if it has not ended.

    The state of one that is to go on must be the one that its log leads to, by the card that it pins.

    Raises BadBundle, JobExists, Unrunnable, StoreUnavailable.
    """
    bundle = await anyio.to_thread.run_sync(read, file)
    _check_state(file, bundle, registry)
    inline = await anyio.to_thread.run_sync(_keep_blobs, file, blobs, _required(bundle))
    copy = _copy(bundle, inline, at)
    await _adopt(journal, bundle, copy)
    return restore(_head(copy)).job


async def _adopt(journal: Journal, bundle: Bundle, copy: StreamCopy) -> None:
    """Raises JobExists."""
    while True:
        try:
            return await journal.adopt(copy)
        except StreamConflict as error:
            if not await _make_way(journal, bundle):
                raise JobExists(bundle.manifest.job) from error


async def _make_way(journal: Journal, bundle: Bundle) -> bool:
    """Forget what is here of a job that moved away and comes back with all of it, or was being forgotten anyway.

    Whether it is one of these. Another engine may forget it at the same time, or may have done so: look again.
    """
    name = stream(bundle.manifest.job)
    here = await journal.load(name)
    if here is None:
        with suppress(StreamConflict):
            await journal.purge(name, expected=0, epoch=0)
        return True
    if restore(here).job.state is not State.MOVED:
        return False
    before = [event.hash async for event in history(journal, name)][:-1]  # but for the word that it went
    if before != [event.hash for event in bundle.events[: len(before)]]:
        return False
    with suppress(StreamConflict):
        await journal.purge(name, expected=here.version, epoch=here.epoch)
    return True


def read(file: Path) -> Bundle:
    """Everything but the blobs, checked. Raises BadBundle."""
    with _opened(file) as tar:
        parts = {name: _member(tar, name) for name in (MANIFEST, EVENTS, CHECKPOINT)}
        try:
            manifest = msgspec.json.decode(parts[MANIFEST] or b"", type=Manifest)
            events = msgspec.msgpack.decode(parts[EVENTS] or b"", type=tuple[Event, ...])
            saved = parts[CHECKPOINT]
            checkpoint = None if saved is None else msgspec.msgpack.decode(saved, type=Checkpoint)
        except msgspec.DecodeError as error:
            raise BadBundle(file.name, f"cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise BadBundle(file.name, f"has format {manifest.format}, this version reads {FORMAT}")
    bundle = Bundle(manifest, events, checkpoint)
    _check(file, bundle)
    return bundle


def _check(file: Path, bundle: Bundle) -> None:
    manifest = bundle.manifest
    head = Loaded(manifest.version, manifest.epoch, None, (), manifest.hash)
    if {event.stream for event in bundle.events} != {stream(manifest.job)}:
        raise BadBundle(file.name, f"has events that are not of job {manifest.job}")
    if problem := broken(bundle.events, head):
        raise BadBundle(file.name, problem)
    try:
        job = replay([facts.decode(event) for event in bundle.events])
        saved = restore(_loaded(bundle))
    except HistoryError as error:
        raise BadBundle(file.name, str(error)) from error
    if saved.job != job:
        raise BadBundle(file.name, "its checkpoint is not what its log folds to")


def _check_state(file: Path, bundle: Bundle, registry: Families) -> None:
    """No hash of the log covers the checkpoint, but the log says what must be in it: only its card's loops can tell.

    Raises BadBundle, Unrunnable.
    """
    saved = restore(_loaded(bundle))
    if saved.job.terminal:
        return
    pinned = saved.job.model
    family = registry.get(pinned.name)
    if family is None or family.card.digest != pinned.card:
        raise Unrunnable(saved.job.id, f"this engine lacks card {pinned.card[:16]} of {pinned.name!r} to check it by")
    try:
        walked = course.follow([facts.decode(event) for event in bundle.events], family)
        began = walked.state is None and saved.state is not None  # its node has, and no step of it is done
        state = driver.resume(walked.job, family, None).state if began else walked.state
    except EngineError as error:
        raise BadBundle(file.name, str(error)) from error
    if state is not None and state != saved.state:
        raise BadBundle(file.name, "its checkpoint has another state than its log leads to")


def _loaded(bundle: Bundle) -> Loaded:
    manifest, saved = bundle.manifest, bundle.checkpoint
    later = tuple(event for event in bundle.events if saved is None or event.version > saved.version)
    return Loaded(manifest.version, manifest.epoch, saved, later, manifest.hash)


def _required(bundle: Bundle) -> frozenset[str]:
    return frozenset(_named(restore(_loaded(bundle)), bundle.events)[0])


def _keep_blobs(file: Path, blobs: Blobs, required: frozenset[str]) -> Mapping[str, bytes]:
    """Put the large ones into the blob store and return the small ones. Raises BadBundle."""
    inline: dict[str, bytes] = {}
    found: set[str] = set()
    with _opened(file) as tar:
        for entry in tar:
            if not entry.name.startswith(BLOBS):
                continue
            digest, data = entry.name.removeprefix(BLOBS), _content(tar, entry)
            if digest_of(data) != digest:
                raise BadBundle(file.name, f"the bytes of blob {digest} do not hash to its name")
            found.add(digest)
            if len(data) <= INLINE_LIMIT:
                inline[digest] = data
            else:
                blobs.put(data)
    if missing := sorted(required - found):
        raise BadBundle(file.name, f"lacks blob {missing[0]}, which the job needs")
    return inline


def _copy(bundle: Bundle, inline: Mapping[str, bytes], at: float) -> StreamCopy:
    """The stream, with what is to be said of its coming here. A job that has ended comes as it is."""
    manifest = bundle.manifest
    saved = restore(_loaded(bundle))
    copy = StreamCopy(
        stream=stream(manifest.job),
        version=manifest.version,
        epoch=manifest.epoch,
        hash=manifest.hash,
        events=bundle.events,
        checkpoint=bundle.checkpoint,
        blobs=tuple(Blob(digest, data) for digest, data in inline.items()),
    )
    if saved.job.terminal:
        return replace(copy, row=row(saved.job, bundle.events[-1].at))
    arrived: list[JobImported | JobResumed] = [JobImported(origin=manifest.origin)]
    if manifest.resumes and saved.job.state is State.PAUSED:
        arrived.append(JobResumed())
    epoch = manifest.epoch + 1  # whoever had it where it comes from can write nothing here
    for fact in arrived:
        event = facts.encode(fact)
        version = copy.version + 1
        hash = link(copy.hash, copy.stream, version, epoch, event.type, at, event.body)
        placed = Event(0, copy.stream, version, epoch, event.type, at, event.body, hash)
        copy = replace(copy, version=version, hash=hash, events=(*copy.events, placed))
    job = replay([facts.decode(event) for event in copy.events])
    checkpoint = Checkpoint(copy.version, saved_body(replace(saved, job=job)))
    return replace(copy, epoch=epoch, checkpoint=checkpoint, row=row(job, at))


def _head(copy: StreamCopy) -> Loaded:
    saved = copy.checkpoint
    later = tuple(event for event in copy.events if saved is None or event.version > saved.version)
    return Loaded(copy.version, copy.epoch, saved, later, copy.hash)


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(file, mode="r:") as tar:
            yield tar
    except FileNotFoundError as error:
        raise BadBundle(file.name, "is not there") from error
    except (tarfile.TarError, EOFError) as error:
        raise BadBundle(file.name, f"is no bundle: {error}") from error
    except OSError as error:
        raise BadBundle(file.name, f"cannot be read: {error.strerror or error}") from error


def _member(tar: tarfile.TarFile, name: str) -> bytes | None:
    try:
        return _content(tar, tar.getmember(name))
    except KeyError:
        return None


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    content: BinaryIO | None = tar.extractfile(entry)  # type: ignore[assignment]
    if content is None:
        raise tarfile.ReadError(f"{entry.name} is no file")
    data = content.read()
    if len(data) != entry.size:
        raise tarfile.ReadError(f"{entry.name} is cut off")
    return data
