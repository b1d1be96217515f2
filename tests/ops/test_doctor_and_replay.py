"""What an operator finds out about a store: its health, and whether its jobs come out the same again."""

import functools
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest

from cards.family import Family
from cards.shapes.family import WEIGHTS, Shapes
from engine.clock import WallClock
from engine.errors import JobNotFound
from ops.bench.processes import command, environment
from ops.doctor import Finding, examine
from ops.replay import verify_job
from ops.settings import Settings
from store.blobs import open_blobs
from store.blobs.records import HEADER
from store.open import open_journal
from tests.processes import run
from tests.sim import Running, World, request
from tests.toy import FAMILY, ToyFamily


@asynccontextmanager
async def engine(data: Path, family: Family = FAMILY) -> AsyncIterator[Running]:
    """An engine without processes on a store as a real one has it."""
    settings = Settings(data=data)
    async with open_journal(settings.store_url) as journal:
        world = World(journal, families=[family])
        world.blobs = open_blobs(settings.blobs_url)  # type: ignore[assignment]
        async with world.engine() as running:
            yield running


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A data folder with one finished toy job."""
    async with engine(tmp_path) as running:
        await running.ended((await running.client.submit(request("a count big=70000"))).id)
    return tmp_path


def settings(data: Path, **changes: object) -> Settings:
    return Settings(**{"data": data, "families": ("tests.toy",)} | changes)  # type: ignore[arg-type]


def damage(data: Path, sql: str) -> None:
    with closing(sqlite3.connect(data / "keyframe.db")) as connection:
        assert connection.execute(sql).rowcount
        connection.commit()


async def wrong(data: Path, **changes: object) -> list[Finding]:
    return [one for one in await examine(settings(data, **changes), WallClock()) if one.level == "wrong"]


async def test_a_sound_store_has_nothing_wrong(data: Path) -> None:
    findings = await examine(settings(data), WallClock())

    assert [one for one in findings if one.level == "wrong"] == []
    assert {one.what for one in findings} == {
        "sqlite", "numerics", "model", "disk", "engine", "schema", "clock", "log", "jobs",
    }  # fmt: skip
    assert [one.message.partition(" ")[2] for one in findings if one.what == "log"] == ["events in 1 streams"]


@pytest.mark.parametrize(
    ("sql", "says", "chain"),
    [
        ("UPDATE jobs SET status = 'failed'", "the job list says something else than the log", None),
        ("UPDATE events SET body = x'c1' WHERE version = 3", "job/job-0001: ", "event 3 (node_started) is not what"),
        ("UPDATE events SET type = 'made_up' WHERE version = 3", "unknown event 'made_up'", "event 3 (made_up) is not"),
        ("UPDATE events SET at = 1 WHERE version = 3", None, "event 3 (node_started) is not what was written"),
        ("UPDATE streams SET version = 3", "the head is not at the last event", "its head says 3"),
        ("DELETE FROM events", "has a head and no events", "ends at event 0"),
    ],
)
async def test_a_damaged_log_is_wrong(data: Path, sql: str, says: str | None, chain: str | None) -> None:
    damage(data, sql)

    found = {finding.what: finding.message for finding in await wrong(data)}

    assert set(found) == {what for what, message in (("log", says), ("chain", chain)) if message}
    assert (says or "") in found.get("log", "")
    assert (chain or "") in found.get("chain", "")


async def test_what_nobody_drives_and_what_is_half_gone_is_told(data: Path) -> None:
    damage(data, "INSERT INTO jobs SELECT 'left', status, model, 0, 1, 1, 1, 'of-old', 1, metadata FROM jobs")
    damage(data, "UPDATE streams SET version = -1 WHERE stream = 'job/job-0001'")

    found = {one.what: one for one in await examine(settings(data), WallClock())}

    assert found["stranded"].level == "note"
    assert found["stranded"].message == "1 open jobs have no live owner: left (start an engine)"
    assert found["purge"].message == "that of job/job-0001 was cut off: engine-admin jobs purge job-0001"


async def test_leases_and_clocks_of_a_shared_store_are_told(tmp_path: Path, new_database: Callable[[], str]) -> None:
    store = new_database()
    async with open_journal(store) as journal:
        await journal.hold_lease("alive", ttl_s=60, url="http://127.0.0.1:9")
        await journal.hold_lease("dead", ttl_s=-5)

    found = [(one.what, one.level, one.message) for one in await examine(settings(tmp_path, store=store), WallClock())]

    leases = [(level, message) for what, level, message in found if what == "lease"]
    assert [level for level, _ in leases] == ["ok", "note"]
    assert leases[0][1].startswith("alive at http://127.0.0.1:9 has ")
    assert "dead at no URL ran out " in leases[1][1]
    assert [level for what, level, _ in found if what == "clock"] == ["ok"]
    [schema] = [message for what, _, message in found if what == "schema"]
    assert "takes engines from" in schema


async def test_a_store_of_a_newer_schema_is_wrong(data: Path) -> None:
    damage(data, "UPDATE alembic_version SET version_num = '9999'")
    damage(data, "UPDATE compatibility SET requires = '9999'")

    assert "store" in [finding.what for finding in await wrong(data)]


async def test_a_store_that_has_lost_its_identity_is_wrong(data: Path) -> None:
    damage(data, "DELETE FROM identity")

    [store] = [finding for finding in await wrong(data) if finding.what == "store"]

    assert "table identity is empty" in store.message


async def test_a_folder_and_a_family_that_are_not_there_are_wrong(tmp_path: Path) -> None:
    found = await wrong(tmp_path / "nowhere", families=("no.family",))

    assert {"model", "disk"} <= {finding.what for finding in found}


async def test_a_file_that_is_no_database_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "keyframe.db").write_bytes(b"not a database" * 1000)

    assert [finding.what for finding in await wrong(tmp_path)] == ["store"]


@pytest.mark.slow
async def test_doctor_exits_with_one_when_something_is_wrong(data: Path) -> None:
    doctor = functools.partial(run, "engine-admin", "doctor", "--json", data=data)
    sound = await anyio.to_thread.run_sync(doctor)
    damage(data, "UPDATE jobs SET status = 'failed'")
    sick = await anyio.to_thread.run_sync(doctor)

    assert (sound.returncode, sick.returncode) == (0, 1), sound.stderr + sick.stderr
    assert [one["level"] for one in msgspec.json.decode(sick.stdout) if one["what"] == "log"] == ["ok", "wrong"]


# -- replay -----------------------------------------------------------------------------------------------------


async def test_a_job_is_verified_from_its_store(data: Path) -> None:
    seen: list[tuple[str, int]] = []

    verdict, changes = await verify_job(settings(data), "job-0001", lambda node, step: seen.append((node, step)))

    assert (verdict.equal, verdict.steps, len(seen)) == (True, 6, 6)
    assert [change.split(":")[0] for change in changes] == ["numerics"]  # the simulated worker says `sim`


async def test_a_stored_blob_that_was_damaged_is_named(data: Path) -> None:
    large = next(open_blobs(settings(data).blobs_url).listing(now=0))
    [pack] = (data / "blobs" / "packs").glob("*.pack")
    with pack.open("r+b") as file:
        file.seek(HEADER.size)
        file.write(b"damaged")

    verdict, _ = await verify_job(settings(data), "job-0001", lambda node, step: None)

    assert verdict.difference is not None
    assert (verdict.difference.node, verdict.difference.what) == ("count", "big")
    assert verdict.difference.logged == large.digest


async def test_other_weights_and_another_card_are_noted(tmp_path: Path) -> None:
    card = msgspec.structs.replace(FAMILY.card, version="0")
    async with engine(tmp_path, ToyFamily(card, weights="old-weights")) as running:
        await running.ended((await running.client.submit(request())).id)

    verdict, changes = await verify_job(settings(tmp_path), "job-0001", lambda node, step: None)

    assert verdict.equal
    assert [change.split(":")[0] for change in changes] == ["card", "weights", "numerics"]
    assert changes[1] == "weights: the job ran with old-weights, here it is toy-weights"


async def test_a_job_that_is_not_there_is_said_to_be(data: Path) -> None:
    with pytest.raises(JobNotFound):
        await verify_job(settings(data), "job-nowhere", lambda node, step: None)


def with_one_value_changed(weights: Path, name: str) -> None:
    """A copy of the shapes weights that differs in one number."""
    import safetensors.torch

    tensors = safetensors.torch.load_file(WEIGHTS)
    tensors[name].flatten()[0] += 0.5
    safetensors.torch.save_file(tensors, weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("text_encoder.norm.weight", "encode step 0, text"),
        ("transformer.out.bias", "denoise step 0, latent"),
        ("vae.decoder.project.bias", "decode step 0, frames/0"),
    ],
)
async def test_one_changed_weight_is_found_at_the_first_step_that_it_changes(
    tmp_path: Path, name: str, at: str
) -> None:
    async with engine(tmp_path, Shapes()) as running:
        asked = msgspec.structs.replace(request("a red circle moving right", steps=2), model="shapes")
        job = await running.ended((await running.client.submit(asked)).id, within_s=120)
    with_one_value_changed(tmp_path / "other.safetensors", name)
    code = "from pathlib import Path; from cards.shapes.family import Shapes; FAMILY = Shapes(Path({!r}))"
    (tmp_path / "other_shapes.py").write_text(code.format(str(tmp_path / "other.safetensors")))

    done = await anyio.run_process(
        command("replay", "verify", job.id, program="engine-admin"),
        env=environment({"families": "other_shapes", "data": tmp_path})
        | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])},
        check=False,
    )

    said = done.stdout.decode()
    assert done.returncode == 1, done.stderr
    assert f"note: weights: the job ran with {job.model.weights[:16]}, here it is" in said
    assert f"differs at {at}: re-execution made other bytes" in said
