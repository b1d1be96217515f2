"""Events of 1 KB through a recorder of eventsourcing, one a commit: `eventsourcing_appends.py URL`."""

import json
import sys
import threading
import time
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from eventsourcing.persistence import ApplicationRecorder, StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

STATE = bytes(1024)


def recorder_at(url: str) -> ApplicationRecorder:
    parts = urlsplit(url)
    made: SQLiteApplicationRecorder | PostgresApplicationRecorder
    if parts.scheme == "sqlite":
        made = SQLiteApplicationRecorder(SQLiteDatastore(parts.path[1:], lock_timeout=30, pool_size=16))
    else:
        host = parts.hostname or parse_qs(parts.query)["host"][0]
        store = PostgresDatastore(parts.path[1:], host, parts.port or 5432, parts.username or "", "", pool_size=16)
        store.pool.open()
        made = PostgresApplicationRecorder(store, events_table_name="bench_events")
    made.create_table()
    return made


def append_until(recorder: ApplicationRecorder, deadline: float, took: list[float]) -> None:
    stream, version = uuid4(), 0
    while (began := time.perf_counter()) < deadline:
        recorder.insert_events([StoredEvent(stream, version, "step_completed", STATE)])
        version += 1
        took.append(time.perf_counter() - began)


def run(recorder: ApplicationRecorder, jobs: int, seconds: float) -> dict[str, object]:
    took: list[float] = []
    cpu, began = time.process_time(), time.perf_counter()
    threads = [threading.Thread(target=append_until, args=(recorder, began + seconds, took)) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"took_s": took, "wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def main() -> None:
    recorder = recorder_at(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(run(recorder, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
