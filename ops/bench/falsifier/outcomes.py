"""What came of a run: who had to wait, who gave up, what the device did meanwhile."""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from ops.bench.falsifier.costs import SLO_S, SLO_TIMES
from ops.bench.falsifier.kinds import SESSION_KINDS
from ops.bench.falsifier.simulation import Job

LATE_AT_MOST = 0.05
"""A number of sessions is within the objective if no more of their requests than these are late: p95."""

PERCENTILES = (50, 95, 99)

DIGITS = 4
"""Behind the point, of what is kept."""


class Times(Struct, frozen=True, kw_only=True):
    """Of one kind, in seconds, at `PERCENTILES`. What was given up counts as never; None is never."""

    requests: int
    late: float
    shown_s: tuple[float | None, ...]
    """To the first frame."""
    done_s: tuple[float | None, ...]


class Outcome(Struct, frozen=True, kw_only=True):
    requests: int
    """Of people in sessions, but for those that were given up too soon to be done on an idle device."""
    late: float
    """The share of them that was late or given up."""
    given_up: float
    kinds: dict[str, Times]
    busy: float
    """The share of the time that the device computed."""
    wasted: float
    """The share of that which went into jobs that were given up, for whatever reason."""
    fairness: float
    """Jain's index of how much longer than alone the tenants' jobs took: 1 if it is the same for all."""
    film_stretch: float
    """How many times longer than alone films took, on average."""
    film_most: float


def outcome(jobs: Sequence[Job], busy: float, within: tuple[float, float] = (SLO_TIMES, SLO_S)) -> Outcome:
    """Of jobs that have all ended."""
    asked = [job for job in jobs if job.patience_s is not None and job.patience_s >= job.alone_s]
    films = [_stretch(job) for job in jobs if job.kind == "film"]
    served_s = sum(job.served_s for job in jobs)
    return Outcome(
        requests=len(asked),
        late=_share(is_late(job, within) for job in asked),
        given_up=_share(job.given_up for job in asked),
        kinds={kind: _times([job for job in asked if job.kind == kind]) for kind in SESSION_KINDS},
        busy=round(busy, DIGITS),
        wasted=round(sum(job.served_s for job in jobs if job.given_up) / served_s, DIGITS) if served_s else 0.0,
        fairness=round(jain(_stretches(jobs)), DIGITS),
        film_stretch=round(sum(films) / len(films), DIGITS) if films else 1.0,
        film_most=round(max(films, default=1.0), DIGITS),
    )


def is_late(job: Job, within: tuple[float, float] = (SLO_TIMES, SLO_S)) -> bool:
    times, seconds = within
    return job.given_up or _lasted_s(job) > times * job.alone_s + seconds


def jain(values: Sequence[float]) -> float:
    """1 if all are the same; 1/n if all but one are nothing."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values)) if values else 1.0


def percentile(values: Sequence[float], of: int) -> float:
    """The least that so many per cent are not above; infinite if there is nothing."""
    return sorted(values)[max(0, math.ceil(len(values) * of / 100) - 1)] if values else math.inf


def _times(jobs: Sequence[Job]) -> Times:
    shown = [math.inf if job.given_up or job.shown_at is None else job.shown_at - job.at for job in jobs]
    done = [math.inf if job.given_up else _lasted_s(job) for job in jobs]
    return Times(
        requests=len(jobs), late=_share(map(is_late, jobs)), shown_s=_percentiles(shown), done_s=_percentiles(done)
    )


def _percentiles(values: Sequence[float]) -> tuple[float | None, ...]:
    found = [percentile(values, of) for of in PERCENTILES]
    return tuple(None if math.isinf(value) else round(value, 3) for value in found)


def _stretches(jobs: Iterable[Job]) -> list[float]:
    """By tenant, on average. What was given up counts by how long it was waited for."""
    each: dict[str, list[float]] = {}
    for job in jobs:
        each.setdefault(job.tenant, []).append(_stretch(job))
    return [sum(stretches) / len(stretches) for stretches in each.values()]


def _stretch(job: Job) -> float:
    return max(1.0, _lasted_s(job) / job.alone_s)


def _lasted_s(job: Job) -> float:
    assert job.ended_at is not None
    return job.ended_at - job.at


def _share(of: Iterable[bool]) -> float:
    each = list(of)
    return round(sum(each) / len(each), DIGITS) if each else 0.0
