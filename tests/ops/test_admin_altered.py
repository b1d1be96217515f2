"""What the commands say of a job whose log, or whose row of the job list, somebody has altered."""

import tarfile
from pathlib import Path

import msgspec
import pytest

from ops.backup import MANIFEST
from ops.settings import Settings
from tests.ops.admin import admin, settings_of
from tests.ops.stores import DONE, OTHER, RESTING, copied, execute, make_store


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("stores") / "sound"
    make_store(data)
    return data


@pytest.fixture
def settings(sound: Path, tmp_path: Path) -> Settings:
    return settings_of(copied(sound, tmp_path / "data"))


ALTERED = f"stream = 'job/{DONE}'"

ALTERATIONS = [
    (f"UPDATE events SET at = 1 WHERE {ALTERED} AND version = 3", "event 3 (node_started) is not what was written"),
    (f"UPDATE events SET body = 'text' WHERE {ALTERED} AND version = 5", "event 5 (step_completed) is not what"),
    (f"UPDATE events SET body = x'c1' WHERE {ALTERED} AND version = 5", "event 5 (step_completed) is not what"),
    (f"DELETE FROM events WHERE {ALTERED} AND version = 6", "event 6 is missing or out of order"),
    (f"DELETE FROM events WHERE {ALTERED} AND version > 12", "ends at event 12, its head says"),
    (f"DELETE FROM events WHERE {ALTERED}", "ends at event 0, its head says"),
    (f"DELETE FROM streams WHERE {ALTERED}", "has no head"),
    (f"UPDATE streams SET version = 'x' WHERE {ALTERED}", "its head says x"),
]


COMMANDS = [
    ("jobs", "show", DONE),
    ("jobs", "events", DONE),
    ("jobs", "steps", DONE),
    ("jobs", "watch", DONE),
    ("replay", "verify", DONE),
    ("replay", "diff", DONE, OTHER),
    ("replay", "diff", OTHER, DONE),
]


@pytest.mark.parametrize(("sql", "says"), ALTERATIONS)
async def test_an_altered_log_is_said_to_be_one(sql: str, says: str, settings: Settings) -> None:
    execute(settings.data, sql)
    verified = await admin(settings, "log", "verify", DONE)

    for command in COMMANDS:
        done = await admin(settings, *command)

        assert done.code == verified.code == 1, command
        assert done.err.startswith(f"error: the log of job {DONE} is not sound: "), command
        assert says in done.err
        assert done.err.count("\n") == 1
        assert (done.out == "") == (command[1] != "events"), "of an altered log only the events are shown, as they are"


async def test_a_job_whose_log_is_altered_does_not_keep_others_from_being_verified(settings: Settings) -> None:
    execute(settings.data, ALTERATIONS[0][0])

    done = await admin(settings, "replay", "verify", "--all", "--json")

    altered, other = sorted(done.json, key=lambda one: one["equal"])
    assert (done.code, altered["verdict"], other["verdict"]["job"]) == (1, None, OTHER)
    assert f"the log of job {DONE} is not sound: event 3" in altered["error"]
    assert done.err == f"error: {altered['error']}\n"


@pytest.mark.parametrize(("sql", "says"), ALTERATIONS)
async def test_a_store_with_an_altered_log_is_backed_up_as_it_is_and_that_is_said(
    sql: str, says: str, settings: Settings, tmp_path: Path
) -> None:
    execute(settings.data, sql)
    file = tmp_path / "backup.tar"

    done = await admin(settings, "db", "backup", file, "--json")

    assert done.code == 1
    assert done.err.startswith(f"error: job/{DONE} is not sound, and the backup has it as it is: ")
    assert says in done.err
    assert done.err.count("\n") == 1
    with tarfile.open(file) as tar:
        manifest = tar.extractfile(MANIFEST)
        assert manifest is not None
        assert list(msgspec.json.decode(manifest.read())["broken"]) == [f"job/{DONE}"]


async def test_what_was_broken_when_it_was_backed_up_is_restored_as_it_was(settings: Settings, tmp_path: Path) -> None:
    execute(settings.data, ALTERATIONS[0][0])
    execute(settings.data, "UPDATE blobs SET data = x'00' WHERE digest = (SELECT min(digest) FROM blobs)")
    assert (await admin(settings, "db", "backup", tmp_path / "backup.tar")).code == 1
    there = settings_of(tmp_path / "there")

    restored = await admin(there, "db", "restore", tmp_path / "backup.tar", "--json")

    assert restored.code == 1
    assert sorted(restored.json["broken"].values()) == [
        "event 3 (node_started) is not what was written, or not what followed event 2",
        "its bytes do not hash to its name",
    ]
    assert restored.err.count("\n") == 2
    assert "event 3" in (await admin(there, "log", "verify", DONE)).out
    assert (await admin(there, "log", "verify", OTHER)).code == 0


async def test_a_row_that_no_store_takes_is_one_line_and_nothing_is_there(settings: Settings, tmp_path: Path) -> None:
    execute(settings.data, ALTERATIONS[1][0])
    assert (await admin(settings, "db", "backup", tmp_path / "backup.tar")).code == 1
    there = settings_of(tmp_path / "there")

    restored = await admin(there, "db", "restore", tmp_path / "backup.tar")

    assert (restored.code, restored.err.count("\n")) == (1, 1)
    assert restored.err.startswith("error: events: a row is of other types")
    assert (await admin(there, "jobs", "list")).code == 1, "there is no store"


async def test_nothing_is_collected_for_as_long_as_a_log_is_not_sound(settings: Settings) -> None:
    execute(settings.data, f"DELETE FROM events WHERE {ALTERED}")

    done = await admin(settings, "gc", "plan")

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert f"it is not known what job {DONE} needs" in done.err


@pytest.mark.parametrize(
    ("sql", "commands"),
    [
        (
            f"UPDATE checkpoints SET body = 'x' WHERE {ALTERED}",
            [("jobs", "show", DONE), ("db", "check"), ("gc", "plan")],
        ),
        ("UPDATE blobs SET data = 'x'", [("replay", "verify", DONE), ("jobs", "fork", DONE, "--at-step", "2")]),
        ("DELETE FROM compatibility", [("jobs", "list"), ("doctor",)]),
    ],
)
async def test_other_damage_is_no_traceback(sql: str, commands: list[tuple[str, ...]], settings: Settings) -> None:
    execute(settings.data, sql)

    for command in commands:
        done = await admin(settings, *command)
        assert done.code == 1, command
        assert done.err.count("\n") <= 1


# -- the job list -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["'no json'", "''", "'[1]'", "'5'", "'null'", "5", "x'ff00'", "CAST(x'ff00' AS TEXT)"]
)
async def test_metadata_that_cannot_be_read_is_told_and_the_list_goes_on(value: str, settings: Settings) -> None:
    execute(settings.data, f"UPDATE jobs SET metadata = {value} WHERE id = '{DONE}'")
    says = f"error: {DONE}: metadata: no JSON object in the job list; `engine-admin db check` writes the list anew\n"

    everything = await admin(settings, "jobs", "list", "--json")
    filtered = await admin(settings, "jobs", "list", "--metadata", "user=ada", "--ids-only")
    chosen = await admin(settings, "jobs", "purge", "--metadata", "user=ada", "--dry-run", "--json")
    named = await admin(settings, "jobs", "show", DONE)

    assert (everything.code, everything.err) == (filtered.code, filtered.err) == (chosen.code, chosen.err) == (1, says)
    assert [(row["id"], row["metadata"]) for row in everything.json] == [
        (RESTING, {"user": "ada"}), (OTHER, {"user": "ada"}), (DONE, None),
    ]  # fmt: skip
    assert filtered.out.split() == [RESTING, OTHER]
    assert [row["job"] for row in chosen.json] == [OTHER]
    assert named.code == 0, "what is folded from the log needs no list"


async def test_a_check_writes_such_metadata_anew_from_the_log(settings: Settings) -> None:
    execute(settings.data, f"UPDATE jobs SET metadata = 'no json' WHERE id = '{DONE}'")

    found = await admin(settings, "db", "check", "--json")

    assert (found.code, found.json["job_list_rebuilt"]) == (1, True)
    assert (await admin(settings, "jobs", "list")).code == 0


async def test_a_list_with_such_metadata_is_backed_up_and_restored(settings: Settings, tmp_path: Path) -> None:
    execute(settings.data, f"UPDATE jobs SET metadata = 'no json' WHERE id = '{DONE}'")
    there = settings_of(tmp_path / "there")

    assert (await admin(settings, "db", "backup", tmp_path / "backup.tar")).code == 0
    assert (await admin(there, "db", "restore", tmp_path / "backup.tar")).code == 0

    assert (await admin(there, "db", "check", "--json")).json["job_list_rebuilt"]
    assert (await admin(there, "jobs", "list")).code == 0
