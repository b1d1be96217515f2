"""A process that puts the same few blobs over and over, or sweeps all it can, as fast as it may. Tests start several.

A putter prints how often it looked for a blob that had to be there, and how often it was not. A writer puts blobs of
its own until it is killed, and prints each digest that was acknowledged.
"""

import random
import sys
import time
from pathlib import Path

from obstore.store import LocalStore

from store.blobs import Blobs, FileBlobs, PackBlobs, Tiers, digest_of
from store.blobs.objects import ObjectBlobs
from store.errors import MissingBlob
from tests.store.power import QuickDisk

GRACE_S = 0.1
SURE_S = GRACE_S - 0.02
"""The clock that stamps files is some milliseconds behind."""
KEPT = [bytes([100 + number]) * 70_000 for number in range(6)]
"""What is live. The test puts it, and nobody puts it again."""
CONTENTS = [bytes([number]) * size for number in range(6) for size in (70_000, 1_100_000)]


def opened(kind: str, folder: Path) -> Blobs:
    match kind:
        case "files":
            return FileBlobs(folder, QuickDisk())
        case "packs":
            return PackBlobs(folder, QuickDisk(), segment_bytes=500_000)
        case "objects":
            return ObjectBlobs(LocalStore(folder, mkdir=True))
        case _:
            return Tiers(opened("packs", folder / "packs"), opened("files", folder))


def put(blobs: Blobs, rounds: int) -> tuple[int, int]:
    looked = lost = 0
    for _ in range(rounds):
        data = random.choice(CONTENTS)
        began = time.time()
        digest = blobs.put(data)
        time.sleep(random.uniform(0, GRACE_S / 10))
        found = readable(blobs, digest)
        if time.time() - began < SURE_S:
            looked += 1
            lost += not found
        lost += not readable(blobs, digest_of(random.choice(KEPT)))
    return looked, lost


def readable(blobs: Blobs, digest: str) -> bool:
    try:
        return digest_of(blobs.get(digest)) == digest
    except MissingBlob:
        return False


def sweep(blobs: Blobs) -> None:
    """It puts as well: where what is live lies beside garbage, it has to be moved."""
    live = {digest_of(data) for data in KEPT}
    while True:
        blobs.put_many([random.randbytes(70_000) for _ in range(3)])
        swept = blobs.sweep(live, grace_s=GRACE_S, now=time.time())
        sys.stdout.write("." if swept.blobs else "")
        sys.stdout.flush()


def write(blobs: Blobs) -> None:
    while True:
        for digest in blobs.put_many([random.randbytes(70_000) for _ in range(3)]):
            sys.stdout.write(f"{digest}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    role, kind, folder, rounds = sys.argv[1:]
    blobs = opened(kind, Path(folder))
    if role == "sweep":
        sweep(blobs)
    if role == "write":
        write(blobs)
    looked, lost = put(blobs, int(rounds))
    sys.stdout.write(f"{looked} {lost}\n")
