"""One scenario from its first engine to the verdict on its log."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import anyio
import httpx
from msgspec import Struct

from store.blobs import open_blobs
from store.open import open_journal
from tests.chaos import checker, faults
from tests.chaos.callers import PATIENCE, Answered, Callers
from tests.chaos.checker import Log
from tests.chaos.place import Place, opened

UP_S = 60.0
REST_S = 90.0
"""How long all may take to come to rest once nothing goes wrong any more."""

ORDER_S = (0.1, 0.7)


class Scenario(Struct, frozen=True):
    store: str
    engines: int
    seed: int
    seconds: float

    @property
    def again(self) -> str:
        return (
            f"python -m tests.chaos --store {self.store} --engines {self.engines} "
            f"--seed {self.seed} --seconds {self.seconds:g}"
        )


class Outcome(Struct, frozen=True):
    """`terminated_s` and `killed_s`: from each SIGTERM and kill -9 of an engine until all its jobs were others'."""

    scenario: Scenario
    faults: Counter[str]
    jobs: Counter[str]
    events: int
    takeovers: int
    terminated_s: list[float]
    killed_s: list[float]
    rest_s: float
    skipped: tuple[str, ...]
    problems: list[str]

    def __str__(self) -> str:
        s = self.scenario
        verdict = "clean" if not self.problems else f"{len(self.problems)} PROBLEMS"
        return (
            f"{s.store} x{s.engines} seed {s.seed}: {self.faults.total()} faults ({_counted(self.faults)}"
            f"{''.join(f', no {kind}: may not mount' for kind in self.skipped)}); "
            f"{self.jobs.total()} jobs ({_counted(self.jobs)}), {self.events} events, {self.takeovers} takeovers; "
            f"SIGTERM to takeover {_spread(self.terminated_s)}, kill -9 {_spread(self.killed_s)}; "
            f"at rest after {self.rest_s:.1f} s; {verdict}"
        )


async def run(scenario: Scenario, folder: Path) -> Outcome:
    chance = random.Random(f"{scenario.seed}/{scenario.store}/{scenario.engines}")
    answered = Answered()
    async with opened(folder, scenario.store, scenario.engines) as place, _client() as http:
        await _up(place)
        plan = faults.drawn(chance, scenario.seconds, faults.kinds(place))
        rest_s = await _play(scenario, place, Callers(place, http, answered), plan, answered, http)
        await _stop(place)
        async with open_journal(place.store, writable=False) as journal:
            logs = await checker.read(journal)
            problems = await checker.problems(journal, open_blobs(place.blobs), answered, _host_of(place))
        problems = [*answered.problems, *place.problems(), *problems]
        return Outcome(
            scenario=scenario,
            faults=place.faults,
            jobs=Counter(str(checker.fold_all(log.facts).state) for log in logs.values()),
            events=sum(len(log.events) for log in logs.values()),
            takeovers=checker.takeovers(logs),
            terminated_s=_waits(place, logs, "terminate"),
            killed_s=_waits(place, logs, "kill"),
            rest_s=rest_s,
            skipped=() if place.small else ("full disk",),
            problems=problems,
        )


def _client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(timeout=PATIENCE, trust_env=False, limits=limits)


async def _up(place: Place) -> None:
    with anyio.fail_after(UP_S):
        while not (all(host.up for host in place.hosts) and place.remote_has_joined):
            await anyio.sleep(0.05)


async def _play(
    scenario: Scenario,
    place: Place,
    callers: Callers,
    plan: list[faults.Fault],
    answered: Answered,
    http: httpx.AsyncClient,
) -> float:
    """Orders come in while things go wrong. Returns how long it took after that until all had come to rest."""
    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as trouble:
            trouble.start_soon(_orders, scenario, callers, tasks)
            trouble.start_soon(faults.happen, place, plan)
        quiet = time.monotonic()
        with anyio.move_on_after(REST_S):
            while not await _at_rest(place, answered, http):
                await anyio.sleep(0.2)
        rest_s = time.monotonic() - quiet
        tasks.cancel_scope.cancel()
    return rest_s


async def _orders(scenario: Scenario, callers: Callers, tasks: anyio.abc.TaskGroup) -> None:
    chance = random.Random(f"orders/{scenario.seed}")
    until, number = time.monotonic() + scenario.seconds, 0
    while time.monotonic() < until:
        tasks.start_soon(callers.customer, f"order-{number}", random.Random(f"{scenario.seed}/{number}"))
        number += 1
        await anyio.sleep(chance.uniform(*ORDER_S))


async def _at_rest(place: Place, answered: Answered, http: httpx.AsyncClient) -> bool:
    """Everybody has been answered, every job has ended or is paused, and who reads one that has ended knows it."""
    if answered.orders.keys() != answered.jobs.keys() or len(answered.asked) != len(answered.told):
        return False
    open_ = await _open(place, http)
    return (
        open_ is not None
        and all(job in answered.ended or job in open_ for job in answered.read)
        and not {job for job, status in open_.items() if status != "paused"}
    )


async def _open(place: Place, http: httpx.AsyncClient) -> dict[str, str] | None:
    """The status of each job that has not ended, as one engine says it."""
    found: dict[str, str] = {}
    try:
        for status in ("queued", "running", "paused"):
            url = f"{place.hosts[-1].url}/v1/jobs"
            page = (await http.get(url, params={"status": status, "limit": 1000})).raise_for_status().json()
            found |= {job["id"]: status for job in page["data"]}
    except httpx.HTTPError:
        return None
    return found


async def _stop(place: Place) -> None:
    """All engines at once, as a person would stop them."""
    for host in place.hosts:
        host.terminate(down_s=3600)
    with anyio.fail_after(UP_S):
        while any(host.process is not None and host.process.poll() is None for host in place.hosts):
            await anyio.sleep(0.05)


def _host_of(place: Place) -> checker.HostOf:
    """Engines are known by their process, workers by their pool."""
    hosts = {pid: host.name for host in place.hosts for pid in host.pids}
    pools = {host.name for host in place.hosts}

    def host_of(name: str) -> str:
        pool = name.partition("-")[0]
        return pool if pool in pools else hosts[checker.pid_of(name)]

    return host_of


def _waits(place: Place, logs: Mapping[str, Log], how: str) -> list[float]:
    ends = [end for host in place.hosts for end in host.ended if end.how == how]
    waits = [checker.taken_after(logs, end.pid, end.at) for end in ends]
    return sorted(wait for wait in waits if wait is not None)


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def _spread(waits: list[float]) -> str:
    if not waits:
        return "-"
    return f"{statistics.median(waits):.2f} s (of {len(waits)}, {waits[0]:.2f} to {waits[-1]:.2f})"
