"""What an operator does with a store's log: looks at it, follows it, exports it, verifies its chains."""

import json
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import pytest

from ops.settings import Settings
from store.journal import Event
from tests.ops.admin import admin, ended, engine, execute
from tests.sim import request


async def test_the_newest_events_are_shown_or_those_after_a_position(settings: Settings) -> None:
    async with engine(settings) as running:
        first, second = await ended(running, 1), await ended(running, 2)
        log = await running.world.journal.read_all()

        async def positions(*flags: object) -> list[int]:
            done = await admin(settings, "log", "tail", "--json", *flags)
            assert done.code == 0, done.err
            return [json.loads(line)["position"] for line in done.out.splitlines()]

        assert await positions("-n", 3) == [event.position for event in log[-3:]]
        assert await positions("-n", 10_000) == [event.position for event in log]
        assert await positions("--after", log[4].position) == [event.position for event in log[5:]]
        of_first = [event.position for event in log if event.stream == f"job/{first}"]
        assert await positions("--stream", f"job/{first}", "-n", 2) == of_first[-2:]

        await running.client.purge(second)  # now the newest positions are a hole
        assert await positions("-n", 3) == of_first[-3:]


async def test_the_tail_follows_what_is_written(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    async with engine(settings) as running, anyio.create_task_group() as tasks:
        from ops.admin.main import parser

        arguments = parser().parse_args(["log", "tail", "-f", "--json"])
        tasks.start_soon(arguments.run, arguments, settings)
        job = await ended(running)

        with anyio.fail_after(30):
            seen = ""
            while "job_completed" not in seen:
                await anyio.sleep(0.01)
                seen += capsys.readouterr().out
        tasks.cancel_scope.cancel()
    versions = [json.loads(line)["version"] for line in seen.splitlines() if job in line]
    assert versions == list(range(1, len(versions) + 1))


async def test_what_is_exported_can_be_read_back(settings: Settings, tmp_path: Path) -> None:
    async with engine(settings) as running:
        await ended(running)
        log = await running.world.journal.read_all()

    shown = await admin(settings, "log", "export")
    written = await admin(settings, "log", "export", "-o", tmp_path / "log.jsonl")
    nowhere = await admin(settings, "log", "export", "-o", tmp_path / "nowhere" / "log.jsonl")

    assert [msgspec.json.decode(line, type=Event) for line in shown.out.splitlines()] == log
    assert (tmp_path / "log.jsonl").read_text() == shown.out
    assert (written.out, written.err) == ("", f"{len(log)} events\n")
    assert (nowhere.code, nowhere.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE events SET at = at + 1 WHERE {second} AND version = 3", "event 3 (node_started) is not what was"),
        ("DELETE FROM events WHERE {second} AND version = 2", "event 2 is missing or out of order: 3 stands"),
        ("DELETE FROM events WHERE {second} AND version > 5", "ends at event 5, its head says"),
        ("DELETE FROM events WHERE {second}", "ends at event 0, its head says"),
        ("DELETE FROM streams WHERE {second}", "has no head"),
        ("UPDATE streams SET version = version + 1 WHERE {second}", "its head says"),
        ("UPDATE events SET stream = 'job/other' WHERE {second} AND version > 7", "ends at event 7, its head says"),
    ],
)
async def test_a_chain_that_is_broken_is_named_with_the_place(settings: Settings, damage: str, says: str) -> None:
    async with engine(settings) as running:
        first, second = await ended(running, 1), await ended(running, 2)
    sound = await admin(settings, "log", "verify", "--json")
    assert (sound.code, sound.json["streams"], sound.json["broken"]) == (0, 2, {})

    assert execute(settings, damage.format(second=f"stream = 'job/{second}'"))

    broken = await admin(settings, "log", "verify", "--json")
    assert broken.code == 1
    assert says in broken.json["broken"].pop(f"job/{second}")
    assert set(broken.json["broken"]) <= {f"job/{second}", "job/other"}
    assert says in (await admin(settings, "log", "verify", second)).out
    assert (await admin(settings, "log", "verify", first)).code == 0
    assert (await admin(settings, "log", "verify", "nope")).err == "error: no job 'nope'\n"


async def test_what_an_engine_writes_meanwhile_breaks_no_chain(settings: Settings) -> None:
    async with engine(settings, max_active=8) as running:
        for seed in range(8):
            await running.client.submit(request(seed=seed, steps=500))
        for _ in range(5):
            done = await admin(settings, "log", "verify")
            assert done.code == 0, done.out
