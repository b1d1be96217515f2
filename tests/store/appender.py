"""A process that appends for ever and prints each version that was acknowledged. Its tests kill it."""

import sys

import anyio

from store.journal import Append, NewEvent
from store.open import open_journal

STREAM = "a"


async def main(url: str) -> None:
    async with open_journal(url) as journal:
        loaded = await journal.load(STREAM)
        version = loaded.version if loaded else 0
        while True:
            pending = [journal.append(step(expected)) for expected in range(version, version + 10)]
            for answer in pending:
                version = (await answer).version
                sys.stdout.write(f"{version}\n")
                sys.stdout.flush()


def step(expected: int) -> Append:
    body = b"%d" % (expected + 1)
    return Append(
        stream=STREAM, expected=expected, epoch=0, at=0.0, events=(NewEvent("step", body),), checkpoint=body * 200
    )


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
