"""Blobs in an object store such as S3, where there is no lock and no removing of what is still old.

So every put makes an object of its own, `<digest>/<token>`, and a sweep removes objects, never digests: what somebody
puts while another sweeps has a name that the sweep does not know. A read asks for the copies first: mostly one.
"""

import secrets
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path

import obstore
from msgspec import Struct
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore

from store.blobs.port import Blobs, Stored, Swept, digest_of
from store.errors import CorruptBlob, MissingBlob, StoreUnavailable

MARKS = "marks"
"""Where other objects have their digest."""
AT_ONCE = 8
LOOKS = 3
BATCH = 1000
"""Objects that one request may remove."""


class Copy(Struct, frozen=True):
    digest: str
    key: str
    nbytes: int
    put_at: float


class ObjectBlobs(Blobs):
    """The bucket has to be there. An upload is one signed request: the service takes all of its bytes or nothing."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @cached_property
    def name(self) -> str:
        with _unavailable_when_refused():
            with suppress(AlreadyExistsError, FileExistsError):
                obstore.put(self._store, "name", secrets.token_hex(16).encode(), mode="create", use_multipart=False)
            return bytes(obstore.get(self._store, "name").bytes()).decode()

    def marks(self) -> set[str]:
        with _unavailable_when_refused():
            found = [one["path"] for batch in obstore.list(self._store, MARKS) for one in batch]
        return {path.rpartition("/")[2] for path in found}

    def mark(self, name: str) -> None:
        with _unavailable_when_refused():
            obstore.put(self._store, f"{MARKS}/{name}", b"", use_multipart=False)

    def unmark(self, name: str) -> None:
        with _unavailable_when_refused(), suppress(FileNotFoundError):
            obstore.delete(self._store, f"{MARKS}/{name}")

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        with _unavailable_when_refused(), ThreadPoolExecutor(AT_ONCE) as threads:
            for _ in threads.map(self._put, blobs, blobs.values()):
                pass

    def get(self, digest: str) -> bytes:
        """Looks again when a copy has gone between the listing and the reading: there may be a younger one."""
        with _unavailable_when_refused():
            for _ in range(LOOKS):
                with suppress(FileNotFoundError):
                    return self._verified(digest)
        raise MissingBlob(digest)

    def has(self, digest: str) -> bool:
        with _unavailable_when_refused():
            return bool(self._copies(digest))

    def path(self, digest: str) -> Path | None:
        return None

    def listing(self, now: float) -> Iterator[Stored]:
        with _unavailable_when_refused():
            for copy in _listed(self._store):
                yield Stored(copy.digest, copy.nbytes, now - copy.put_at)

    def sweep(self, live: Container[str], *, grace_s: float, now: float, dry_run: bool = False) -> Swept:
        with _unavailable_when_refused():
            old = [copy for copy in self._spare(live) if now - copy.put_at >= grace_s]
            if not dry_run:
                for begin in range(0, len(old), BATCH):
                    with suppress(FileNotFoundError):  # another sweep was quicker; the next one takes what is left
                        obstore.delete(self._store, [copy.key for copy in old[begin : begin + BATCH]])
        return Swept(len(old), sum(copy.nbytes for copy in old))

    def _put(self, digest: str, data: bytes) -> None:
        obstore.put(self._store, f"{digest}/{secrets.token_hex(8)}", data, use_multipart=False)

    def _copies(self, digest: str) -> list[Copy]:
        """The youngest first."""
        return sorted(_listed(self._store, digest), key=lambda copy: -copy.put_at)

    def _verified(self, digest: str) -> bytes:
        copies = self._copies(digest)
        for copy in copies:
            data = bytes(obstore.get(self._store, copy.key).bytes())
            if digest_of(data) == digest:
                return data
        raise CorruptBlob(digest) if copies else MissingBlob(digest)

    def _spare(self, live: Container[str]) -> Iterator[Copy]:
        """All copies of what is not live, all but the youngest of what is."""
        for digest, copies in groupby(_listed(self._store), key=lambda copy: copy.digest):
            spare = sorted(copies, key=lambda copy: copy.put_at)
            yield from spare[:-1] if digest in live else spare


def _listed(store: ObjectStore, digest: str | None = None) -> Iterator[Copy]:
    for batch in obstore.list(store, digest):
        for found in batch:
            digest, _, token = found["path"].rpartition("/")
            if token and digest and digest != MARKS:
                yield Copy(digest, found["path"], found["size"], found["last_modified"].timestamp())


@contextmanager
def _unavailable_when_refused() -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        raise StoreUnavailable(str(error).partition("\n")[0]) from error
