"""A job as a file: out of one store, into another, and on."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from sqlalchemy import create_engine

from engine import bundle
from engine.contents import Contents
from engine.errors import BadBundle, GoneOn, JobExists, JobNotFound, NotAllowed, Unrunnable
from engine.job import State
from store.chain import broken
from store.journal import Journal
from store.open import open_journal
from store.upkeep import begin_purge
from tests import toy
from tests.sim import Running, World, assert_unharmed, digests, request

BIG = "a count big=70000"
STEPS = 4
ALL = STEPS + 2


async def whole() -> list[Any]:
    async with World().engine() as running:
        job = await running.ended((await running.client.submit(request(BIG, steps=STEPS))).id)
        return digests(await running.client.checkpoints(job.id))


async def exported(world: World, job: str, file: Path, *, moved: bool = False) -> bundle.Manifest:
    return await bundle.export(
        world.journal, Contents(world.journal, world.blobs), job, file, origin="here", moved=moved, resumes=moved
    )


async def held(running: Running, units: int) -> str:
    """A job that is paused after so many steps."""
    running.workers[0].hold_at = units
    job = (await running.client.submit(request(BIG, steps=STEPS))).id
    await running.until(lambda: running.workers[0].gate is not None)
    await running.client.verbs.pause(job)
    running.workers[0].open()
    await running.until(lambda: job not in running.engine.ledger.actors)
    return job


async def test_a_job_takes_its_pins_along(tmp_path: Path) -> None:
    here, there = World(), World()
    async with here.engine() as running:
        job = await held(running, 3)
        await running.client.verbs.pin(job, 2)
        await exported(here, job, tmp_path / "job.tar")

    async with there.engine() as running:
        await running.client.take_in(tmp_path / "job.tar")
        await running.client.verbs.resume(job)

        assert (await running.ended(job)).pins == (2,)
        running.client._ids = lambda: "fork"
        assert (await running.ended((await running.client.fork(job, 2)).id)).state is State.COMPLETED


@pytest.mark.parametrize("units", range(1, ALL))
async def test_a_job_that_is_moved_at_any_step_ends_with_the_same_bits_and_runs_nowhere_twice(
    tmp_path: Path, units: int
) -> None:
    here, there = World(), World()
    async with here.engine() as running:
        job = await held(running, units)
        manifest = await exported(here, job, tmp_path / "job.tar", moved=True)
        await running.client.verbs.move_away(job, manifest.version, "there")
        ran = len(running.workers[0].ran)
        gone = await running.client.job(job)
        await assert_unharmed(running)

    async with there.engine() as running:
        taken = await running.client.take_in(tmp_path / "job.tar")
        ended = await running.ended(job)

        assert (gone.state, taken.state) == (State.MOVED, State.QUEUED)
        assert ended.state is State.COMPLETED
        assert digests(await running.client.checkpoints(job)) == await whole()
        assert len(running.workers[0].ran) == ALL - ran
        assert broken(await there.journal.read(f"job/{job}"), await there.journal.load(f"job/{job}")) is None
        kinds = [told.type for told in await running.client.events(job)]
        assert kinds.count("job_imported") == kinds.count("job_resumed") == 1


async def test_a_job_comes_back_to_where_it_was(tmp_path: Path) -> None:
    here, there = World(), World()
    async with here.engine() as first, there.engine() as second:
        job = await held(first, 2)
        away = await exported(here, job, tmp_path / "away.tar", moved=True)
        await first.client.verbs.move_away(job, away.version, "there")
        second.workers[0].hold_at = 2
        await second.client.take_in(tmp_path / "away.tar")
        await second.until(lambda: second.workers[0].gate is not None)
        await second.client.verbs.pause(job)
        second.workers[0].open()
        await second.until(lambda: job not in second.engine.ledger.actors)
        back = await exported(there, job, tmp_path / "back.tar", moved=True)
        await second.client.verbs.move_away(job, back.version, "here")

        await first.client.take_in(tmp_path / "back.tar")

        assert (await first.ended(job)).state is State.COMPLETED
        assert digests(await first.client.checkpoints(job)) == await whole()
        assert broken(await here.journal.read(f"job/{job}"), await here.journal.load(f"job/{job}")) is None
        with pytest.raises(JobExists):
            await first.client.take_in(tmp_path / "away.tar")


class Overtaken:
    """A journal where another engine forgets the same job at the same time, and is done first."""

    def __init__(self, inner: Journal) -> None:
        self._inner = inner

    async def purge(self, stream: str, *, expected: int, epoch: int) -> None:
        await self._inner.purge(stream, expected=expected, epoch=epoch)
        await self._inner.purge(stream, expected=expected, epoch=epoch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("beside", [lambda journal: journal, lambda journal: cast(Journal, Overtaken(journal))])
@pytest.mark.parametrize("cut_off", [False, True])
async def test_a_job_that_moved_away_comes_back_over_what_is_left_of_it(
    cut_off: bool, beside: Callable[[Journal], Journal], tmp_path: Path
) -> None:
    """If it was cut off on its way, what was here is half forgotten. Another engine may be forgetting it meanwhile."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_journal(url) as journal:
        world = World(journal)
        async with world.engine() as running:
            job = await held(running, 2)
            away = await exported(world, job, tmp_path / "job.tar", moved=True)
            await running.client.verbs.move_away(job, away.version, "there")
    if cut_off:
        with create_engine(url).begin() as connection:
            begin_purge(connection, f"job/{job}", expected=away.version + 1, epoch=away.epoch + 1)

    async with open_journal(url) as journal:
        again = World(beside(journal))
        again.blobs = world.blobs
        async with again.engine() as running:
            await running.client.take_in(tmp_path / "job.tar")

            assert (await running.ended(job)).state is State.COMPLETED
            assert digests(await running.client.checkpoints(job)) == await whole()


async def test_a_finished_job_is_the_same_in_another_store(tmp_path: Path) -> None:
    here, there = World(), World()
    async with here.engine() as running:
        await running.client.submit(request())  # so that the other has a name that is free there
        job = await running.ended((await running.client.submit(request(BIG, preview_every=2))).id)
        name = next(iter(job.artifacts))
        artifact = await running.client.artifact(job.id, name)
    await exported(here, job.id, tmp_path / "job.tar")

    async with there.engine() as running:
        await running.client.take_in(tmp_path / "job.tar")

        assert await running.client.job(job.id) == job
        assert await running.client.artifact(job.id, name) == artifact
        events = [(e.version, e.epoch, e.hash) for e in await here.journal.read(f"job/{job.id}")]
        assert [(e.version, e.epoch, e.hash) for e in await there.journal.read(f"job/{job.id}")] == events
        assert (await running.ended((await running.client.fork(job.id, 3)).id)).state is State.COMPLETED
        with pytest.raises(JobExists, match=job.id):
            await running.client.take_in(tmp_path / "job.tar")


async def test_a_job_that_has_gone_on_since_it_was_exported_is_not_moved(tmp_path: Path) -> None:
    world = World()
    async with world.engine() as running:
        job = await held(running, 2)
        manifest = await exported(world, job, tmp_path / "job.tar", moved=True)
        await running.client.verbs.resume(job)
        with pytest.raises((GoneOn, NotAllowed)):
            await running.client.verbs.move_away(job, manifest.version, "there")
        await running.ended(job)
        with pytest.raises(NotAllowed):
            await running.client.verbs.move_away(job, manifest.version, "there")
        with pytest.raises(JobNotFound):
            await exported(world, "nobody", tmp_path / "nobody.tar")

    assert not (tmp_path / "nobody.tar").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["job.tar"]


def changed(source: Path, target: Path, part: str, change: Any) -> None:
    """The same bundle with one part as `change` makes it of what it was; None leaves it out."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for entry in old:
            file = old.extractfile(entry)
            assert file is not None
            data: bytes | None = file.read()
            if entry.name.startswith(part):
                data = change(data)
            if data is not None:
                entry.size = len(data)
                new.addfile(entry, io.BytesIO(data))


def with_other(field: str, value: Any) -> Any:
    def change(data: bytes) -> bytes:
        return msgspec.json.encode(msgspec.json.decode(data) | {field: value})

    return change


def without_the_third(data: bytes) -> bytes:
    events = msgspec.msgpack.decode(data)
    return msgspec.msgpack.encode(events[:2] + events[3:])


def with_another_state(data: bytes) -> bytes:
    checkpoint = msgspec.msgpack.decode(data)
    saved = msgspec.msgpack.decode(checkpoint["body"])
    saved["state"]["scalars"]["seed"] += 1
    return msgspec.msgpack.encode(checkpoint | {"body": msgspec.msgpack.encode(saved)})


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        ("blobs/", lambda data: data[:-1] + b"?", "do not hash to its name"),
        ("blobs/", lambda data: None, "lacks blob"),
        ("events", lambda data: data[:-40] + bytes(40), "cannot be read|not what was written|head does not carry"),
        ("events", without_the_third, "event 3 is missing"),
        ("events", lambda data: None, "cannot be read"),
        ("checkpoint", lambda data: data[: len(data) // 2], "cannot be read"),
        ("checkpoint", with_another_state, "another state than its log leads to"),
        ("manifest", lambda data: None, "cannot be read"),
        ("manifest", with_other("job", "another"), "not of job another"),
        ("manifest", with_other("version", 3), "its head says 3"),
        ("manifest", with_other("format", 2), "has format 2"),
    ],
)
async def test_a_bundle_that_was_changed_is_refused_and_leaves_nothing(
    tmp_path: Path, part: str, change: Any, problem: str
) -> None:
    here, there = World(), World()
    async with here.engine() as running:
        job = await held(running, 3)
    await exported(here, job, tmp_path / "job.tar")
    changed(tmp_path / "job.tar", tmp_path / "bad.tar", part, change)

    async with there.engine() as running:
        with pytest.raises(BadBundle, match=problem):
            await running.client.take_in(tmp_path / "bad.tar")

        assert await running.client.jobs() == []
        assert await there.journal.streams("") == []


async def test_a_state_before_the_first_step_of_a_node_is_checked_too(tmp_path: Path) -> None:
    here, there = World(), World()
    async with here.engine(workers=0) as running:
        job = await running.client.submit(request(BIG, steps=STEPS))
        await running.until(lambda: bool(running.engine.ledger.actors))
        await running.engine.ledger.settled()
        await running.client.verbs.pause(job.id)
    await exported(here, job.id, tmp_path / "job.tar")
    changed(tmp_path / "job.tar", tmp_path / "bad.tar", "checkpoint", with_another_state)

    async with there.engine() as running:
        with pytest.raises(BadBundle, match="another state than its log leads to"):
            await running.client.take_in(tmp_path / "bad.tar")
        assert (await running.client.take_in(tmp_path / "job.tar")).state is State.PAUSED


@pytest.mark.parametrize("families", [(), (toy.ToyFamily(replace(toy.CARD, version="2")),)])
async def test_a_job_that_is_to_go_on_is_taken_in_only_where_its_card_can_check_its_state(
    tmp_path: Path, families: Any
) -> None:
    here, there = World(), World(families=families)
    async with here.engine() as running:
        job = await held(running, 3)
        ended = await running.ended((await running.client.submit(request())).id)
    await exported(here, job, tmp_path / "job.tar")
    await exported(here, ended.id, tmp_path / "ended.tar")

    async with there.engine(workers=0) as running:
        with pytest.raises(Unrunnable, match=r"lacks card [0-9a-f]{16} of 'toy' to check it by"):
            await running.client.take_in(tmp_path / "job.tar")
        assert await there.journal.streams("") == []
        assert (await running.client.take_in(tmp_path / "ended.tar")).state is State.COMPLETED


@pytest.mark.parametrize("content", [None, b"", b"not a tar" * 1_000])
async def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.tar").write_bytes(content)
    async with World().engine() as running:
        with pytest.raises(BadBundle, match=r"x\.tar"):
            await running.client.take_in(tmp_path / "x.tar")
