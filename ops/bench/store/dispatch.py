"""G10: a unit to a worker process and its result back, beside a message of 1 KB and its echo over bare ZeroMQ."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import anyio
import anyio.to_thread
import zmq

from cards.wire import Hello, StepResult, UnitId, WorkPlan, WorkUnit
from engine.link import ZmqLink, listen
from ops.bench.measure import NOOP
from ops.bench.processes import worker
from ops.bench.store.goals import Outcome, at_most
from ops.bench.store.options import Options
from ops.bench.store.runs import Run, by_turns, rates

PLAN = WorkPlan(instance="noop", loop="count", kind="count", step=0, scalars={"step_s": 0.0}, writes=("x",))
TRIPS = 1000
OF_RAW = 2
P50_MS = 0.25

ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
socket.send(b"here")
while True:
    socket.send_multipart(socket.recv_multipart())
"""


async def run(options: Options) -> Outcome:
    trips = 50 if options.quick else TRIPS
    async with listen() as link:
        with worker(options.data / "worker", link.address, families=NOOP), _echo(options.data) as raw:
            name, other = await _hello(link), raw.recv_multipart()[0]
            serials = iter(range(1, 1_000_000))

            async def ours() -> Run:
                return await _trips(link, name, serials, trips)

            async def floor() -> Run:
                return await anyio.to_thread.run_sync(_raw_trips, raw, other, trips)

            contenders = {"a unit and its result": ours, "a raw message and its echo": floor}
            await by_turns(contenders, 1)  # warms up
            seen = await by_turns(contenders, options.rounds)
    mine, least = (median(run.quantile_ms(0.5) for run in runs) for runs in seen.values())
    goals = [
        at_most("G10", "round trip of a unit to one of a raw message, p50", mine / least, OF_RAW),
        at_most("G10", "round trip of a unit, p50", mine, P50_MS, "ms"),
    ]
    return Outcome([rates(what, runs) for what, runs in seen.items()], goals)


async def _hello(link: ZmqLink) -> str:
    while True:
        arrived = await link.receive()
        if isinstance(arrived.message, Hello):
            return arrived.worker


async def _trips(link: ZmqLink, worker: str, serials: Iterator[int], count: int) -> Run:
    took: list[float] = []
    started = perf_counter()
    for _ in range(count):
        began = perf_counter()
        await link.send(worker, WorkUnit(UnitId("job", 1, 1, 1, next(serials)), PLAN))
        while not isinstance((await link.receive()).message, StepResult):
            pass
        took.append(perf_counter() - began)
    return Run(took, perf_counter() - started)


@contextmanager
def _echo(data: Path) -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.bind(f"ipc://{data / 'echo'}")
        process = subprocess.Popen([sys.executable, "-c", ECHO, f"ipc://{data / 'echo'}"])
        try:
            yield router
        finally:
            process.kill()
            process.wait()


def _raw_trips(router: "zmq.Socket[bytes]", other: bytes, count: int) -> Run:
    took: list[float] = []
    started = perf_counter()
    for _ in range(count):
        began = perf_counter()
        router.send_multipart([other, bytes(1024)])
        router.recv_multipart()
        took.append(perf_counter() - began)
    return Run(took, perf_counter() - started)
