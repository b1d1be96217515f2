"""`python -m ops.bench [PART ...]`: figures, and their machine. Without a part, all of the table, in its order."""

import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec

from ops.bench import batch, blobs, compile, folds, livez, loop, overhead, ranks, recovery, steps, transfers
from ops.bench.measure import Figure, machine
from ops.tables import show

PARTS: dict[str, Callable[[Path], Awaitable[list[Figure]]]] = {
    "overhead": overhead.run,
    "steps": steps.run,
    "recovery": recovery.run,
    "livez": livez.run,
    "blobs": blobs.run,
    "folds": folds.run,
    "loop": loop.run,
    "batch": batch.run,
    "ranks": ranks.run,
    "compile": compile.run,
    "transfers": transfers.run,
}


async def main(names: list[str]) -> None:
    print(f"machine: {machine()}")
    print(f"command: python -m ops.bench {' '.join(names)}\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name in names:
            figures = await PARTS[name](Path(folder) / name)
            show([msgspec.structs.asdict(line) for line in figures], as_json=False)
            print()


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in wanted if name not in PARTS]:
        sys.exit(f"error: no benchmark {unknown[0]!r}; there are: {', '.join(PARTS)}")
    anyio.run(main, wanted, backend_options={"use_uvloop": True})
