"""What every blob store promises, asked of each."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from msgspec import Struct
from obstore.store import LocalStore, MemoryStore

from store.blobs import Blobs, FileBlobs, MemoryBlobs, PackBlobs, Stored, Swept, digest_of, open_blobs, tenants
from store.blobs.objects import ObjectBlobs
from store.errors import CorruptBlob, MissingBlob
from tests.s3 import new_bucket, variables

SMALL, LARGE = 70_000, 1_100_000
AN_HOUR = 3600.0


class Kind(Struct, frozen=True):
    """`open` gives what another process would open. Times of putting are known to within `tick_s`."""

    open: Callable[[], Blobs]
    tick_s: float = 0.05


@pytest.fixture(params=["memory", "files", "packs", "objects in memory", "objects in files", "objects in s3", "folder"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kind:
    match request.param:
        case "memory":
            return Kind(always(MemoryBlobs(time.time)))
        case "files":
            return Kind(lambda: FileBlobs(tmp_path / "blobs"))
        case "packs":
            return Kind(lambda: PackBlobs(tmp_path / "blobs"))
        case "objects in memory":
            objects = MemoryStore()
            return Kind(lambda: ObjectBlobs(objects))
        case "objects in files":
            return Kind(lambda: ObjectBlobs(LocalStore(tmp_path / "blobs", mkdir=True)))
        case "objects in s3":
            endpoint: str = request.getfixturevalue("s3")
            for name, value in variables(endpoint).items():
                monkeypatch.setenv(name, value)
            url = f"s3://{new_bucket(endpoint)}/some/where"
            return Kind(lambda: open_blobs(url), tick_s=1.25)
        case _:
            return Kind(lambda: open_blobs(tmp_path / "blobs"))


def always(blobs: Blobs) -> Callable[[], Blobs]:
    return lambda: blobs


@pytest.fixture
def blobs(kind: Kind) -> Blobs:
    return kind.open()


def some(name: str) -> list[bytes]:
    """Bytes of both sizes."""
    return [name.encode().ljust(SMALL), name.encode().ljust(LARGE)]


def later() -> float:
    return time.time() + AN_HOUR


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"latent" * 100_000, b"x" * 2_000_000], ids=["empty", "one byte", "small", "large"]
)
def test_bytes_come_back_under_their_hash(blobs: Blobs, data: bytes) -> None:
    digest = blobs.put(data)

    assert digest == blake3(data).hexdigest()
    assert blobs.has(digest)
    assert blobs.get(digest) == data


def test_several_come_back_each_under_its_hash(blobs: Blobs) -> None:
    datas = [*some("a"), *some("b"), some("a")[0], b""]

    digests = blobs.put_many(datas)

    assert digests == [digest_of(data) for data in datas]
    assert [blobs.get(digest) for digest in digests] == datas


def test_none_at_all_may_be_put(blobs: Blobs) -> None:
    assert blobs.put_many([]) == []
    assert list(blobs.listing(time.time())) == []


def test_bytes_may_be_put_again(blobs: Blobs) -> None:
    assert blobs.put(b"again") == blobs.put(b"again")
    assert blobs.get(digest_of(b"again")) == b"again"


def test_what_nobody_put_is_missing(blobs: Blobs) -> None:
    digest = digest_of(b"nobody's")

    for _ in range(2):
        assert not blobs.has(digest)
        assert blobs.path(digest) is None
        with pytest.raises(MissingBlob, match=digest):
            blobs.get(digest)
        blobs.put(b"somebody's")


def test_a_path_leads_to_the_bytes(blobs: Blobs) -> None:
    for data in some("clip"):
        path = blobs.path(blobs.put(data))

        assert path is None or path.read_bytes() == data


def test_threads_may_put_the_same_bytes_at_once(blobs: Blobs) -> None:
    threads = [threading.Thread(target=blobs.put, args=(b"same" * 10_000,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert blobs.get(digest_of(b"same" * 10_000)) == b"same" * 10_000


def test_what_does_not_hash_to_its_name_is_never_handed_out(blobs: Blobs) -> None:
    for data in some("meant"):
        blobs.put_named({digest_of(data): data[:-1] + b"?"})

        with pytest.raises(CorruptBlob, match=digest_of(data)):
            blobs.get(digest_of(data))


def test_who_opens_the_same_store_sees_at_once_what_another_puts(kind: Kind) -> None:
    writer, reader = kind.open(), kind.open()
    assert reader.name == writer.name

    for name in ("a", "b", "c"):
        digests = writer.put_many(some(name))
        assert [reader.get(digest) for digest in digests] == some(name)


def test_a_listing_tells_what_is_there_and_how_old_it_is(kind: Kind, blobs: Blobs) -> None:
    before = time.time() - kind.tick_s
    digests = blobs.put_many(some("a"))
    after = time.time()

    listed = sorted(blobs.listing(now=after + AN_HOUR), key=lambda stored: stored.nbytes)

    assert [(stored.digest, stored.nbytes) for stored in listed] == [(digests[0], SMALL), (digests[1], LARGE)]
    assert all(AN_HOUR <= stored.age_s + kind.tick_s <= AN_HOUR + (after - before) + kind.tick_s for stored in listed)


def test_a_sweep_takes_what_is_old_and_not_live(blobs: Blobs) -> None:
    live = blobs.put_many(some("live"))
    blobs.put_many(some("dead"))
    blobs.put_many(some("gone"))

    swept = blobs.sweep(set(live), grace_s=60, now=later())

    assert swept.blobs == 4
    assert swept.nbytes >= 2 * (SMALL + LARGE)
    assert {stored.digest for stored in blobs.listing(later())} == set(live)
    assert [blobs.get(digest) for digest in live] == some("live")
    for data in (*some("dead"), *some("gone")):
        assert not blobs.has(digest_of(data))
        with pytest.raises(MissingBlob):
            blobs.get(digest_of(data))
    assert blobs.sweep(set(live), grace_s=60, now=later()) == Swept()


def test_a_sweep_leaves_what_is_young(blobs: Blobs) -> None:
    digests = blobs.put_many(some("dead"))

    assert blobs.sweep((), grace_s=60, now=time.time()) == Swept()
    assert all(map(blobs.has, digests))


def test_a_dry_run_says_what_a_sweep_would_take_and_takes_nothing(blobs: Blobs) -> None:
    live = blobs.put_many(some("live"))
    dead = blobs.put_many(some("dead"))

    said = blobs.sweep(live, grace_s=60, now=later(), dry_run=True)

    assert said.blobs == 2
    assert all(map(blobs.has, [*live, *dead]))
    assert blobs.sweep(live, grace_s=60, now=later()) == said


def test_who_puts_garbage_again_has_it_for_a_whole_grace(kind: Kind) -> None:
    blobs, another = kind.open(), kind.open()
    first, second = blobs.put_many(some("once more"))
    time.sleep(kind.tick_s)
    now = time.time()

    blobs.put(some("once more")[0])
    another.put(some("once more")[1])
    another.sweep((), grace_s=0.9 * kind.tick_s, now=now)

    assert [blobs.get(digest) for digest in (first, second)] == some("once more")


def test_others_read_on_while_one_sweeps(kind: Kind) -> None:
    blobs, reader = kind.open(), kind.open()
    live = blobs.put_many(some("live"))
    blobs.put_many([*some("dead"), *some("gone")])
    assert [reader.get(digest) for digest in live] == some("live")

    blobs.sweep(live, grace_s=0, now=later())

    assert [reader.get(digest) for digest in live] == some("live")
    assert not reader.has(digest_of(some("dead")[0]))


def test_a_mark_is_there_for_all_until_it_is_taken_away(kind: Kind) -> None:
    blobs, another = kind.open(), kind.open()
    assert blobs.marks() == set()

    for name in ("journal-1a", "journal-2b", "journal-1a"):
        blobs.mark(name)
    assert another.marks() == {"journal-1a", "journal-2b"}
    for name in ("journal-1a", "journal-1a", "nobody-s"):
        another.unmark(name)

    assert blobs.marks() == {"journal-2b"}


def test_a_mark_is_no_blob_and_no_sweep_takes_it(blobs: Blobs) -> None:
    blobs.put_many(some("dead"))
    blobs.mark("journal-1a")

    assert len(list(blobs.listing(later()))) == 2
    assert blobs.sweep((), grace_s=0, now=later()).blobs == 2

    assert blobs.marks() == {"journal-1a"}
    assert list(blobs.listing(later())) == []
    assert not blobs.has("marks")


def test_a_sweep_asks_who_else_has_bytes_here(kind: Kind) -> None:
    blobs, another = kind.open(), kind.open()
    blobs.mark("something-else")

    tenants.move_in(blobs, "1a")
    assert tenants.others(blobs, "1a") == set()
    tenants.move_in(another, "2b")
    assert tenants.others(blobs, "1a") == {"2b"}
    assert tenants.others(another, "2b") == {"1a"}
    tenants.move_out(blobs, "2b")

    assert tenants.others(blobs, "1a") == set()


def test_where_nothing_was_put_there_is_nothing_to_sweep(blobs: Blobs) -> None:
    assert blobs.sweep((), grace_s=0, now=later()) == Swept()
    assert list[Stored](blobs.listing(later())) == []
