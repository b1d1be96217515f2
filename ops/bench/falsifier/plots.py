"""The plots of docs/scheduling.md, from the trace and from what a comparison came to."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

from ops.bench.falsifier import svg
from ops.bench.falsifier.kinds import KINDS, SESSION_KINDS
from ops.bench.falsifier.outcomes import LATE_AT_MOST
from ops.bench.falsifier.svg import Axis, Bar, Series
from ops.bench.falsifier.sweep import Results
from ops.bench.falsifier.trace import Arrival, Ask, Trace

FOLDER = Path("docs/scheduling")

COLOURS: Mapping[str, str] = {
    "picture": "#4c9be8",
    "draft": "#f2a541",
    "clip": "#d1495b",
    "sound": "#66a182",
    "film": "#555555",
    "thumbnail": "#9a8fbf",
}

LINES: Mapping[str, tuple[str, str]] = {
    "fifo": ("#999999", "6 3"),
    "request_deadline": ("#c46a2b", "6 3"),
    "run_to_completion": ("#d1495b", "6 3"),
    "short_first": ("#9a8fbf", ""),
    "round_robin": ("#66a182", ""),
    "batch_first": ("#2e6f57", ""),
    "fair": ("#f2a541", ""),
    "least_slack": ("#7fb2e5", ""),
    "late_first": ("#b08d57", ""),
    "late_soon": ("#4fb3a5", ""),
    "deadline": ("#1f4e9c", ""),
}
"""Colours and dashes; what finishes a job before it begins the next is dashed."""

SESSIONS_SHOWN, MINUTES_SHOWN = 10, 20


def draw(results: Results, trace: Trace, folder: Path = FOLDER) -> list[Path]:
    """Write all plots. Returns their files."""
    plots = {"trace.svg": _trace(trace), "late.svg": _late(results), "capacity.svg": _capacity(results)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in plots.items():
        (folder / name).write_text(plot)
    return [folder / name for name in plots]


def _trace(trace: Trace) -> str:
    axis = Axis(label="minutes", ticks=range(0, MINUTES_SHOWN + 1, 2))
    people = {f"session {n}": list(_alone(one.asks)) for n, one in enumerate(trace.sessions[:SESSIONS_SHOWN])}
    others = {one.tenant: list(_arrivals(one.arrivals)) for one in trace.background}
    title = "What is asked for, if each had a device of its own"
    return svg.rows(
        title, axis, people | others, {kind: COLOURS[kind] for kind in (*SESSION_KINDS, "film", "thumbnail")}
    )


def _alone(asks: Iterable[Ask]) -> Iterator[Bar]:
    """A session's requests if none has to wait; hollow is what is given up."""
    now = 0.0
    for ask in asks:
        start = now + ask.think_s
        now = start + min(KINDS[ask.kind].seconds, ask.patience_s)
        if start >= 60 * MINUTES_SHOWN:
            return
        hollow = ask.patience_s < KINDS[ask.kind].seconds
        yield Bar(start=start / 60, end=now / 60, colour=COLOURS[ask.kind], hollow=hollow)


def _arrivals(arrivals: Iterable[Arrival]) -> Iterator[Bar]:
    for one in arrivals:
        if one.at < 60 * MINUTES_SHOWN:
            yield Bar(start=one.at / 60, end=(one.at + KINDS[one.kind].seconds) / 60, colour=COLOURS[one.kind])


def _late(results: Results) -> str:
    numbers = results.plan.sessions
    series = {
        name: Series(points=[(n, 100 * results.late(name, sessions=n)) for n in numbers], colour=colour, dashes=dashes)
        for name, (colour, dashes) in LINES.items()
        if name in results.plan.contenders
    }
    return svg.lines(
        "Requests of sessions that are late or given up",
        Axis(label="sessions on one device", ticks=numbers),
        Axis(label="per cent", ticks=range(0, 81, 10)),
        series,
        mark=100 * LATE_AT_MOST,
        mark_label="the objective",
    )


def _capacity(results: Results) -> str:
    found = {name: results.capacities(name) for name in results.plan.contenders}
    most = max(map(max, found.values()))
    return svg.rows(
        "Sessions on one device within the objective: the median trace",
        Axis(label="sessions", ticks=range(most + 2)),
        {
            name: [Bar(start=0, end=median(each), colour=LINES[name][0], label=f"{min(each)} to {max(each)}")]
            for name, each in found.items()
        },
        {},
    )
