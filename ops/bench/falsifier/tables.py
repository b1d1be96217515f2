"""The tables of docs/scheduling.md, in Markdown, from what a comparison came to."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean, median

from ops.bench.falsifier.costs import SLO_S, SLO_TIMES
from ops.bench.falsifier.kinds import KINDS, SESSION_KINDS
from ops.bench.falsifier.outcomes import Outcome
from ops.bench.falsifier.real import Measured
from ops.bench.falsifier.sweep import Results
from ops.bench.falsifier.trace import SEED
from ops.bench.falsifier.worlds import BELIEVED, WORLDS

SHOWN = 4
"""The number of sessions that is looked at closely."""


def tables(results: Results) -> Iterator[str]:
    yield costs()
    yield capacities(results)
    yield closely(results)
    yield times(results, lambda outcome, kind: outcome.kinds[kind].shown_s)
    yield times(results, lambda outcome, kind: outcome.kinds[kind].done_s)
    yield worlds(results)


def costs() -> str:
    rows = []
    for name, kind in KINDS.items():
        longest = max(kind.parts, key=lambda part: part.seconds)
        steps = sum(part.steps for part in kind.parts)
        objective = f"{SLO_TIMES * kind.seconds + SLO_S:.1f} s" if name in SESSION_KINDS else "-"
        rows.append(
            [name, kind.model, kind.shape, steps, f"{longest.seconds:.2f} s", f"{kind.seconds:.2f} s", objective]
        )
    return _table(["kind", "model", "size", "steps", "longest step", "alone", "in time within"], rows)


def capacities(results: Results) -> str:
    """On all traces, in the world that is believed in."""
    rows = []
    for name in results.plan.contenders:
        found = _found(results, name, BELIEVED)
        late = [f"{100 * _mean(results, name, sessions, _late):.1f}" for sessions in results.plan.sessions]
        rows.append([name, f"{median(found):g}", ", ".join(map(str, found)), *late])
    return _table(["policy", "sessions", "by trace", *map(str, results.plan.sessions)], rows)


def closely(results: Results) -> str:
    """On the shipped trace, with `SHOWN` sessions."""
    return measured({name: _outcome(results, name) for name in results.plan.contenders})


def measured(outcomes: Mapping[str, Outcome]) -> str:
    rows = []
    for name, one in outcomes.items():
        shares = (one.late, one.given_up, one.busy, one.wasted)
        rows.append(
            [name, *(f"{100 * share:.1f}" for share in shares), f"{one.fairness:.2f}", f"{one.film_stretch:.1f}"]
        )
    return _table(["policy", "late %", "given up %", "busy %", "wasted %", "fairness", "films, times alone"], rows)


def real(found: Measured) -> str:
    """What was measured, and on what."""
    alone = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in found.alone_s.items())
    about = f"{found.machine}; {found.sessions} sessions, {found.seconds:g} s for each policy; alone: {alone}."
    return f"{about}\n\n{measured(found.outcomes)}"


def times(results: Results, of: Callable[[Outcome, str], Sequence[float | None]]) -> str:
    """At p50, p95 and p99, on the shipped trace with `SHOWN` sessions."""
    rows = [
        [name, *(" / ".join(map(_seconds, of(_outcome(results, name), kind))) for kind in SESSION_KINDS)]
        for name in results.plan.contenders
    ]
    return _table(["policy", *SESSION_KINDS], rows)


def worlds(results: Results) -> str:
    """The most sessions within the objective: the median trace."""
    rows = [
        [
            world,
            *(f"{median(_found(results, name, world)[: results.plan.searched]):g}" for name in results.plan.contenders),
        ]
        for world in WORLDS
        if world in results.plan.worlds
    ]
    return _table(["", *results.plan.contenders], rows)


def _found(results: Results, contender: str, world: str) -> list[int]:
    return [one.sessions for one in results.capacities if (one.contender, one.world) == (contender, world)]


def _mean(results: Results, contender: str, sessions: int, of: Callable[[Outcome], float]) -> float:
    return mean(of(one.outcome) for one in results.runs if (one.contender, one.sessions) == (contender, sessions))


def _late(outcome: Outcome) -> float:
    return outcome.late


def _outcome(results: Results, contender: str) -> Outcome:
    wanted = (contender, SEED, SHOWN)
    return next(one.outcome for one in results.runs if (one.contender, one.seed, one.sessions) == wanted)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
