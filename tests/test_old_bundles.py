"""A bundle of each release is kept for ever: any store takes it in, and its job ends with the bits that it had then.

`python -m tests.goldens bundles RELEASE` writes those of a release, each with the digests of all its steps beside it.
"""

from pathlib import Path

import msgspec
import pytest

from engine import bundle
from engine.check import check
from engine.job import State
from store.chain import broken
from store.journal import Journal
from tests.history import FOLDER
from tests.sim import World, digests

BUNDLES = sorted(FOLDER.glob("bundle-*.tar"))

Steps = list[tuple[str, int, dict[str, str]]]


@pytest.fixture(params=BUNDLES, ids=lambda path: path.stem)
def file(request: pytest.FixtureRequest) -> Path:
    file: Path = request.param
    return file


def pinned(file: Path) -> Steps:
    return msgspec.json.decode(file.with_suffix(".json").read_bytes(), type=Steps)


def done(file: Path) -> int:
    return sum(event.type == "step_completed" for event in bundle.read(file).events)


async def test_the_job_of_an_old_bundle_ends_with_the_bits_that_it_had_then(journal: Journal, file: Path) -> None:
    world = World(journal)
    async with world.engine() as running:
        await running.until(lambda: running.engine.lease.held)

        taken = await running.client.take_in(file)
        ended = await running.ended(taken.id)

        assert ended.state is State.COMPLETED
        assert digests(await running.client.checkpoints(ended.id)) == pinned(file)
        assert len(running.workers[0].ran) == len(pinned(file)) - done(file), "nothing was done again"
        for name in ended.artifacts:
            assert (await running.client.artifact(ended.id, name))[1]
    assert broken(await journal.read(f"job/{ended.id}"), await journal.load(f"job/{ended.id}")) is None
    assert (await check(journal)).problems == ()


def test_there_is_one_that_is_half_done_and_one_that_is_finished() -> None:
    left = [len(pinned(file)) - done(file) for file in BUNDLES]

    assert min(left) == 0 < max(left)
