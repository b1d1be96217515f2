"""The tables of docs/scheduling.md, in Markdown, from what a comparison came to."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from statistics import median

from ops.bench.falsifier.costs import SLO_S, SLO_TIMES
from ops.bench.falsifier.kinds import KINDS, SESSION_KINDS
from ops.bench.falsifier.outcomes import Outcome
from ops.bench.falsifier.real import Measured
from ops.bench.falsifier.sweep import Results
from ops.bench.falsifier.worlds import BELIEVED, BURSTS


def put(page: str, made: Iterable[str]) -> str:
    """A page with these tables, each in place of the next one there that has its head."""
    done = ""
    for table in made:
        before, head, after = page.partition(table.partition("\n")[0])
        if not head:
            raise ValueError(f"the page has no table with the head {table.partition(chr(10))[0]}, or not in its turn")
        lines = after.splitlines(keepends=True)
        done += before + table + "\n"
        page = "".join(dropwhile(lambda line: line.startswith("|"), lines[1:]))
    return done + page


def tables(results: Results) -> Iterator[str]:
    yield costs()
    yield capacities(results)
    yield closely(results)
    yield times(results, lambda outcome, kind: outcome.kinds[kind].shown_s)
    yield times(results, lambda outcome, kind: outcome.kinds[kind].done_s)
    yield worlds(results)
    yield closely(results, BURSTS)


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
        found = results.capacities(name)
        late = [f"{100 * results.late(name, sessions=sessions):.1f}" for sessions in results.plan.sessions]
        rows.append([name, f"{median(found):g}", ", ".join(map(str, found)), *late])
    return _table(["policy", "sessions", "by trace", *map(str, results.plan.sessions)], rows)


def closely(results: Results, world: str = BELIEVED) -> str:
    """On the shipped trace, with `SHOWN` sessions."""
    return measured({name: results.closely(name, world) for name in results.plan.contenders})


def measured(outcomes: Mapping[str, Outcome]) -> str:
    rows = []
    for name, one in outcomes.items():
        shares = (one.late, one.given_up, one.busy, one.wasted)
        rows.append(
            [
                name,
                *(f"{100 * share:.1f}" for share in shares),
                f"{one.fairness:.2f}",
                f"{one.film_stretch:.1f}",
                f"{one.film_most:.1f}",
            ]
        )
    head = ["late %", "given up %", "busy %", "wasted %", "fairness", "films, times alone", "the slowest"]
    return _table(["policy", *head], rows)


def real(found: Measured) -> str:
    """What was measured, and on what."""
    alone = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in found.alone_s.items())
    about = f"{found.machine}; {found.sessions} sessions, {found.seconds:g} s for each policy; alone: {alone}."
    return f"{about}\n\n{measured(found.outcomes)}"


def times(results: Results, of: Callable[[Outcome, str], Sequence[float | None]]) -> str:
    """At p50, p95 and p99, on the shipped trace with `SHOWN` sessions."""
    rows = [
        [name, *(" / ".join(map(_seconds, of(results.closely(name), kind))) for kind in SESSION_KINDS)]
        for name in results.plan.contenders
    ]
    return _table(["policy", *SESSION_KINDS], rows)


def worlds(results: Results) -> str:
    """The per cent of requests that are late with `SHOWN` sessions, on average over the same traces."""
    seeds = results.plan.compared
    rows = [
        [world, *(f"{100 * results.late(name, world, seeds=seeds):.1f}" for name in results.plan.contenders)]
        for world in results.plan.worlds
    ]
    return _table(["", *results.plan.contenders], rows)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
