"""What every journal promises of the list of jobs."""

from typing import Any

from msgspec.structs import replace

from store.journal import JobFilter, Journal
from tests.contracts.journals import job, write


async def test_jobs_are_listed_newest_first(journal: Journal) -> None:
    for row in (job("a", at=1), job("c", at=3), job("b", at=2), job("d", at=3)):
        await journal.append(write(row.id, 0, b"1", row=row))

    assert [row.id for row in await journal.jobs()] == ["d", "c", "b", "a"]
    assert [row.id for row in await journal.jobs(limit=2)] == ["d", "c"]
    assert [row.id for row in await journal.jobs(after="c", limit=1)] == ["b"]
    assert await journal.jobs(after="a") == []
    assert await journal.jobs(after="unknown") == []


async def test_open_jobs_are_listed_in_the_order_of_work(journal: Journal) -> None:
    rows = [job("a", at=1), job("b", at=2, priority=9), job("c", at=3, priority=9), job("d", at=0, open=False)]
    for row in rows:
        await journal.append(write(row.id, 0, b"1", row=row))

    assert [row.id for row in await journal.jobs(JobFilter(open=True))] == ["b", "c", "a"]
    assert [row.id for row in await journal.jobs(JobFilter(open=True), after="b")] == ["c", "a"]
    assert [row.id for row in await journal.jobs(JobFilter(open=True), after="c")] == ["a"]
    assert [row.id for row in await journal.jobs(JobFilter(open=False))] == ["d"]
    assert await journal.open_jobs() == 3


async def test_jobs_are_filtered(journal: Journal) -> None:
    rows = [job("a", status="queued"), job("b", status="running"), job("c", status="running", open=False)]
    for row in rows:
        await journal.append(write(row.id, 0, b"1", row=row))

    assert {row.id for row in await journal.jobs(JobFilter(status="running"))} == {"b", "c"}
    assert {row.id for row in await journal.jobs(JobFilter(status="running", open=True))} == {"b"}
    assert len(await journal.jobs(JobFilter(model="shapes"))) == 3
    assert await journal.jobs(JobFilter(model="other")) == []


async def test_a_job_is_listed_as_it_was_last_written(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", row=job("a")))
    pending = [journal.append(write("a", n, b"x", row=job("a", status=f"at {n}"))) for n in (1, 2, 3)]
    for answer in pending:
        await answer

    assert await journal.jobs() == [job("a", status="at 3")]


async def test_the_list_can_be_replaced_as_a_whole(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", row=job("a")))

    await journal.replace_rows([job("b"), job("c", at=1)])
    assert await journal.jobs() == [job("c", at=1), job("b")]

    await journal.replace_rows([])
    assert await journal.jobs() == []


async def test_the_list_is_not_replaced_once_something_newer_was_written(journal: Journal) -> None:
    seen = await journal.append(write("a", 0, b"1", row=job("a")))
    newer = await journal.append(write("a", 1, b"2"))

    assert not await journal.replace_rows([job("b")], at=seen.position)
    assert await journal.jobs() == [job("a")]
    assert await journal.replace_rows([job("b")], at=newer.position)
    assert await journal.jobs() == [job("b")]


async def test_jobs_are_found_by_what_is_known_of_them(journal: Journal) -> None:
    await journal.append(write("a", 0, b"1", row=replace(job("abc", at=1), metadata={"user": "ada", "of": "x"})))
    await journal.append(write("b", 0, b"1", row=replace(job("abd", at=2), attempts=3, owner="e1")))
    await journal.append(write("c", 0, b"1", row=replace(job("b", at=3), metadata={"user": "bob"})))

    async def found(**wanted: Any) -> list[str]:
        return [row.id for row in await journal.jobs(JobFilter(**wanted))]

    assert await found(prefix="ab") == ["abd", "abc"]
    assert await found(prefix="") == ["b", "abd", "abc"]
    assert await found(metadata={"user": "ada"}) == ["abc"]
    assert await found(metadata={"user": "ada", "of": "y"}) == []
    assert await found(attempts_from=2) == ["abd"]
    assert await found(owner="e1") == ["abd"]
    assert await found(submitted_before=3) == ["abd", "abc"]
    assert await found(updated_before=3, prefix="ab") == ["abc"]
    assert await found(updated_after=2) == ["b", "abd"]
    assert (await journal.jobs(JobFilter(prefix="abc")))[0].metadata == {"user": "ada", "of": "x"}
