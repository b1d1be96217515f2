"""The trace: what people ask of one device within an hour, and what is asked beside them.

    python -m ops.bench.falsifier.trace

writes `trace.jsonl`, which is what `PEOPLE` gives with seed 1. No public trace of interactive video sessions is known
to us; the model's figures are assumptions, and here to be varied.

A session is a loop of one person: ask, wait for the result, look at it and think, ask again; now and then go away for a
while. What is asked next is asked only once the last is there or was given up, so that a slow device is asked for less.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from ops.bench.falsifier.kinds import KINDS

FILE = Path(__file__).with_name("trace.jsonl")
SEED = 1
ASKED = {"picture": 0.4, "draft": 0.35, "clip": 0.15, "sound": 0.1}


class LogNormal(Struct, frozen=True):
    median: float
    sigma: float

    def draw(self, chance: random.Random) -> float:
        return self.median * math.exp(self.sigma * chance.gauss(0.0, 1.0))


class Model(Struct, frozen=True, kw_only=True):
    """What a trace is drawn from. Times are in seconds."""

    sessions: int = 24
    lasts_s: float = 3600.0
    asked: dict[str, float] = field(default_factory=ASKED.copy)
    """What a session asks for, by probability ..."""
    same: float = 0.6
    """... if it is not the same again."""
    burst: float = 6.0
    """Requests in quick succession, on average; their number is geometric."""
    think_s: LogNormal = LogNormal(6.0, 0.8)
    away_s: LogNormal = LogNormal(90.0, 1.0)
    """Between two bursts."""
    fickle: float = 0.12
    """How often a request is given up before it could be done, its sender having thought of something better."""
    patience: LogNormal = LogNormal(8.0, 0.5)
    """How long others are waited for, in times of what they take alone, and `PATIENT_S`."""
    film_every_s: float = 400.0
    """Films are asked for at random, by a tenant that does not wait for them ..."""
    thumbnails_every_s: float = 60.0
    """... and so are thumbnails, eight at a time."""


PEOPLE = Model()
PATIENT_S = 10.0
THUMBNAILS = 8


class Ask(Struct, frozen=True, array_like=True):
    think_s: float
    """After the last one ended."""
    kind: str
    patience_s: float
    """Given up if it is not there so long after it was asked for."""


class Session(Struct, frozen=True, kw_only=True):
    tenant: str
    asks: tuple[Ask, ...]


class Arrival(Struct, frozen=True, array_like=True):
    at: float
    kind: str


class Background(Struct, frozen=True, kw_only=True):
    """Work that nobody waits for, whatever becomes of it."""

    tenant: str
    arrivals: tuple[Arrival, ...]


class Trace(Struct, frozen=True, kw_only=True):
    seed: int
    model: Model
    sessions: tuple[Session, ...]
    background: tuple[Background, ...]


def draw(seed: int, model: Model = PEOPLE) -> Trace:
    """Each session has a stream of chance of its own: with more of them the first ones are the same."""
    return Trace(
        seed=seed,
        model=model,
        sessions=tuple(_session(number, random.Random(f"{seed}/{number}"), model) for number in range(model.sessions)),
        background=(
            Background(tenant="archive", arrivals=tuple(_films(random.Random(f"{seed}/film"), model))),
            Background(tenant="catalogue", arrivals=tuple(_thumbnails(random.Random(f"{seed}/thumbnail"), model))),
        ),
    )


def _session(number: int, chance: random.Random, model: Model) -> Session:
    """Every other one is of one tenant; the rest are each their own."""
    tenant = f"person-{number}" if number % 2 else "studio"
    return Session(tenant=tenant, asks=tuple(_asks(chance, model)))


def _asks(chance: random.Random, model: Model) -> Iterator[Ask]:
    """More than enough for as long as the trace lasts."""
    now, kind = 0.0, _any(chance, model)
    think_s = chance.uniform(0.0, model.away_s.median)
    while now < model.lasts_s:
        now += think_s
        yield Ask(round(think_s, 2), kind, round(_patience_s(chance, model, KINDS[kind].seconds), 2))
        again = chance.random() < 1 - 1 / model.burst
        think_s = (model.think_s if again else model.away_s).draw(chance)
        kind = kind if chance.random() < model.same else _any(chance, model)


def _any(chance: random.Random, model: Model) -> str:
    return chance.choices(list(model.asked), list(model.asked.values()))[0]


def _patience_s(chance: random.Random, model: Model, alone_s: float) -> float:
    if chance.random() < model.fickle:
        return chance.uniform(0.0, 1.0) * alone_s
    return PATIENT_S + model.patience.draw(chance) * alone_s


def _films(chance: random.Random, model: Model) -> Iterator[Arrival]:
    for at in _at_random(chance, model.film_every_s, model.lasts_s):
        yield Arrival(at, "film")


def _thumbnails(chance: random.Random, model: Model) -> Iterator[Arrival]:
    for at in _at_random(chance, model.thumbnails_every_s, model.lasts_s):
        yield from [Arrival(at, "thumbnail")] * THUMBNAILS


def _at_random(chance: random.Random, every_s: float, until_s: float) -> Iterator[float]:
    now = chance.expovariate(1 / every_s)
    while now < until_s:
        yield round(now, 2)
        now += chance.expovariate(1 / every_s)


def write(trace: Trace, file: Path = FILE) -> None:
    rows: list[Any] = [{"seed": trace.seed, "model": trace.model}, *trace.sessions, *trace.background]
    file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def read(file: Path = FILE) -> Trace:
    first, *rows = map(msgspec.json.decode, file.read_bytes().splitlines())
    return msgspec.convert(
        {
            **first,
            "sessions": [row for row in rows if "asks" in row],
            "background": [row for row in rows if "arrivals" in row],
        },
        Trace,
    )


if __name__ == "__main__":
    write(draw(SEED))
