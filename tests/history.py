"""Logs of every release. They are added and never edited: what was written once must fold for ever.

`python -m tests.history RELEASE` writes one from the toy family.
"""

import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec

from cards.request import RequestChanges
from store.journal import Event
from tests.sim import World, request

FOLDER = Path(__file__).parent / "histories"


def read(path: Path) -> Iterator[Event]:
    for line in path.read_bytes().splitlines():
        fields = msgspec.json.decode(line)
        yield Event(**fields | {"body": b64decode(fields["body"])})


async def write(path: Path) -> None:
    """Jobs that end in each way, one of them recovered by a second engine."""
    world = World()
    async with world.engine() as running:
        for prompt in ("a count", "an unknown count", "a count fail=1", "a count big=70000"):
            await running.ended((await running.client.submit(request(prompt, preview_every=2))).id)
        job = await running.client.submit(request(steps=40))
        await running.until(lambda: running.workers[0].ran[-1].plan.step > 5)
    async with world.engine(workers=0) as running:
        running.add_worker(fingerprint="another machine")
        await running.until(lambda: bool(running.workers[0].ran))
        await running.engine.lose(running.workers[0].name, "was killed by signal 9")
        await running.client.cancel(job.id)
        left = await running.client.submit(request())
        await running.client.cancel(left.id)
        await running.engine.drain(1.0)
    await operate(world)
    events = await world.journal.read_all(limit=10_000)
    lines = [msgspec.json.encode(msgspec.structs.asdict(e) | {"body": b64encode(e.body).decode()}) for e in events]
    path.write_bytes(b"\n".join(lines) + b"\n")


async def operate(world: World) -> None:
    """All that people do to jobs, to one that failed, one that is forked in its middle, and one that waits."""
    async with world.engine() as running:
        verbs = running.client.verbs
        failed = await running.ended((await running.client.submit(request("a count fail=2", preview_every=1))).id)
        await verbs.quarantine(failed.id, "odd frames")
        await verbs.lift(failed.id)
        await running.ended(failed.id)
        fork = await running.client.fork(failed.id, 2, RequestChanges(prompt="a count start=2", guidance=2.0))
        await running.ended(fork.id)
    async with world.engine(workers=0, max_active=0) as running:
        verbs = running.client.verbs
        await verbs.pin(failed.id, 1, "the frames are good until here")
        await verbs.unpin(failed.id, 1)
        await verbs.retry(failed.id, "mended")
        await verbs.rewind(failed.id, 1, "from the start")
        await verbs.terminate(failed.id, "enough")
        waiting = await running.client.submit(request())
        await verbs.pause(waiting.id, "the disk is being moved")
        await verbs.migrate(waiting.id, engine="engine")
        await verbs.resume(waiting.id)
        await running.client.cancel(waiting.id)


if __name__ == "__main__":
    anyio.run(write, FOLDER / f"{sys.argv[1]}.jsonl")
