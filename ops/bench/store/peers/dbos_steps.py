"""Durable no-op steps of DBOS: `dbos_steps.py SYSTEM_DATABASE_URL`, then a question a line."""

import json
import sys
import time

from dbos import DBOS


@DBOS.step()
def noop() -> None:
    pass


@DBOS.workflow()
def steps_until(deadline: float) -> list[float]:
    """How long each step took, in seconds."""
    took = []
    while (began := time.perf_counter()) < deadline:
        noop()
        took.append(time.perf_counter() - began)
    return took


def run(jobs: int, seconds: float) -> dict[str, object]:
    cpu, began = time.process_time(), time.perf_counter()
    handles = [DBOS.start_workflow(steps_until, began + seconds) for _ in range(jobs)]
    took = [one for handle in handles for one in handle.get_result()]
    return {"took_s": took, "wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def main() -> None:
    DBOS(config={"name": "bench", "system_database_url": sys.argv[1], "log_level": "ERROR"})
    DBOS.launch()
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main()
