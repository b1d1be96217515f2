"""A store as one file: a tar of its rows and of the blobs that its events refer to.

The rows are of one moment, and so is what there is of the blobs: one that was there then and is swept before it is
copied ends the backup. The manifest comes last, with the hash of every member before it: a file without one was cut
off. What is restored is checked first and there afterwards, or it is not there at all.
"""

import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import Struct

from engine.clock import Clock
from ops.errors import BadSettings, OpsError
from store import dump
from store.blobs import Blobs, digest_of, holds
from store.dump import Page, Soundness, fill
from store.errors import MissingBlob

FORMAT = 1
MANIFEST = "manifest.json"
BLOBS = "blobs/"

Progress = Callable[[str, int], None]


class Manifest(Struct, frozen=True, kw_only=True):
    """`rows` counts those of each table; `members` are the hashes of the pages, in the order in which they lie."""

    format: int
    revision: str
    position: int
    rows: dict[str, int]
    blobs: int
    members: dict[str, str]
    broken: dict[str, str] = {}
    """The streams and inline blobs that were not sound in the store already, and why."""


def backup(url: str, blobs: Blobs | None, file: Path, progress: Progress, clock: Clock) -> Manifest:
    """Beside engines at work. Without `blobs` only rows are kept. Raises OpsError, StoreError."""
    if blobs is None:
        return _backup(url, None, file, progress)
    with holds.held(blobs, clock.now) as renew:

        def go_on(what: str, count: int) -> None:
            renew()
            progress(what, count)

        return _backup(url, blobs, file, go_on)


def _backup(url: str, blobs: Blobs | None, file: Path, progress: Progress) -> Manifest:
    there = _there(blobs, progress)  # before the rows: what is swept from here on is missed
    with _new(file) as out, tarfile.open(fileobj=out, mode="w") as tar, dump.snapshot(url) as taken:
        rows = dict.fromkeys(dump.TABLES, 0)
        members: dict[str, str] = {}
        wanted: dict[str, None] = {}
        soundness = Soundness()
        for number, page in enumerate(taken.pages()):
            name = f"rows/{number:06}-{page.table}.msgpack"
            members[name] = _add(tar, name, msgspec.msgpack.encode(page))
            rows[page.table] += len(page.rows)
            wanted |= dict.fromkeys(_digests(page))
            soundness.follow(page)
            progress(page.table, rows[page.table])
        kept = _add_blobs(tar, blobs, there, list(wanted), progress) if blobs is not None else 0
        manifest = Manifest(
            format=FORMAT,
            revision=taken.revision,
            position=taken.position,
            rows=rows,
            blobs=kept,
            members=members,
            broken=soundness.problems(),
        )
        _add(tar, MANIFEST, msgspec.json.encode(manifest))
    return manifest


def restore(url: str, blobs: Blobs, file: Path, progress: Progress) -> Manifest:
    """Into an empty store. Raises OpsError, StoreError."""
    with _readable(file) as tar:
        manifest = _manifest(tar, file)
        pages = _pages(tar, manifest, blobs, progress)
        fill(url, pages, revision=manifest.revision, position=manifest.position, broken=manifest.broken)
    return manifest


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> str:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
    return blake3(data).hexdigest()


def _there(blobs: Blobs | None, progress: Progress) -> set[str]:
    there = set()
    for count, stored in enumerate(blobs.listing(0.0) if blobs is not None else (), start=1):
        there.add(stored.digest)
        progress("listing blobs", count)
    return there


def _add_blobs(tar: tarfile.TarFile, blobs: Blobs, there: set[str], wanted: list[str], progress: Progress) -> int:
    """Those that were there before the rows, or have come since: others are inline, or had been let go of.

    Raises OpsError if one of them is gone by now.
    """
    kept = []
    for looked, digest in enumerate(wanted, start=1):
        if digest in there or blobs.has(digest):
            kept.append(digest)
        progress("looking for blobs", looked)
    for done, digest in enumerate(kept, start=1):
        try:
            data = blobs.get(digest)
        except MissingBlob as error:
            raise OpsError(f"blob {digest} was collected while the backup was being taken: run it again") from error
        _add(tar, BLOBS + digest, data)
        progress("blobs", done)
    return len(kept)


def _digests(page: Page) -> Iterator[str]:
    """Whatever an event calls a digest, of events of any version."""
    if page.table != "events":
        return
    body = page.columns.index("body")
    for row in page.rows:
        with suppress(msgspec.DecodeError, TypeError, RecursionError):  # somebody has altered it: it names nothing
            yield from _called_digest(msgspec.msgpack.decode(row[body]))


def _called_digest(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(digest := value.get("digest"), str):
            yield digest
        for inner in value.values():
            yield from _called_digest(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _called_digest(inner)


def _pages(tar: tarfile.TarFile, manifest: Manifest, blobs: Blobs, progress: Progress) -> Iterator[Page]:
    """The rows, and before they end the blobs: rows that refer to a blob are there only once it is."""
    done = dict.fromkeys(manifest.rows, 0)
    for name, hash in manifest.members.items():
        data = _read(tar, tar.getmember(name))
        if blake3(data).hexdigest() != hash:
            raise OpsError(f"file: {name} in it is damaged: take another backup")
        page = msgspec.msgpack.decode(data, type=Page)
        done[page.table] += len(page.rows)
        progress(page.table, done[page.table])
        yield page
    _restore_blobs(tar, manifest, blobs, progress)


def _restore_blobs(tar: tarfile.TarFile, manifest: Manifest, blobs: Blobs, progress: Progress) -> None:
    members = [member for member in tar.getmembers() if member.name.startswith(BLOBS)]
    if len(members) != manifest.blobs:
        raise OpsError(f"file: it has {len(members)} of {manifest.blobs} blobs: take another backup")
    for done, member in enumerate(members, start=1):
        data = _read(tar, member)
        if digest_of(data) != member.name.removeprefix(BLOBS):
            raise OpsError(f"file: {member.name} in it is damaged: take another backup")
        blobs.put(data)
        progress("blobs", done)


def _manifest(tar: tarfile.TarFile, file: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode(_read(tar, tar.getmember(MANIFEST)), type=Manifest)
    except (KeyError, msgspec.DecodeError) as error:
        raise OpsError(f"file: {file} is no whole backup: it has no manifest; take another one") from error
    if manifest.format != FORMAT:
        raise OpsError(f"file: {file} is of format {manifest.format}, not {FORMAT}: use the code that wrote it")
    return manifest


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    inside = tar.extractfile(member)
    return inside.read() if inside is not None else b""


@contextmanager
def _readable(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(file, mode="r:") as tar:
            yield tar
    except tarfile.TarError as error:
        raise OpsError(f"file: {file} is no whole backup: {error}; take another one") from error
    except OSError as error:
        raise BadSettings(f"file: cannot read {file}: {error.strerror}") from error


@contextmanager
def _new(file: Path) -> Iterator[Any]:
    """A file that is there under its name once it is whole and durable."""
    try:
        if file.exists():
            raise BadSettings(f"file: {file} is there already: choose another name")
        with tempfile.NamedTemporaryFile(dir=file.absolute().parent, prefix=f".{file.name}.", delete=False) as out:
            try:
                yield out
                out.flush()
                os.fsync(out.fileno())
                os.link(out.name, file)  # which does not replace what somebody has put there meanwhile
            finally:
                os.unlink(out.name)
        _sync_folder(file.absolute().parent)
    except OSError as error:
        raise BadSettings(f"file: cannot write {file}: {error.strerror}; choose another place") from error


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
