"""The falsifier: its trace is what its model makes, its device does as one would, its figures are counted right."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ops.bench.falsifier import sweep, tables, trace
from ops.bench.falsifier.contenders import CONTENDERS
from ops.bench.falsifier.costs import GENEROUS, PUBLISHED, World, alone_s, steps, together_s
from ops.bench.falsifier.kinds import KINDS, MEMORY_BYTES, WEIGHTS_GB
from ops.bench.falsifier.outcomes import is_late, jain, outcome, percentile
from ops.bench.falsifier.simulation import Job, Simulation, asked
from ops.bench.falsifier.trace import Arrival, Ask, Background, Model, Session, Trace
from ops.bench.falsifier.worlds import BELIEVED

SHORT = Model(lasts_s=600.0, film_every_s=200.0)
CONTENDER = pytest.mark.parametrize("contender", CONTENDERS)


def test_the_shipped_trace_is_what_its_model_makes(tmp_path: Path) -> None:
    trace.write(trace.draw(trace.SEED), tmp_path / "trace.jsonl")

    assert (tmp_path / "trace.jsonl").read_bytes() == trace.FILE.read_bytes()
    assert trace.read() == trace.draw(trace.SEED)


def test_more_sessions_leave_the_first_as_they_are() -> None:
    few, many = trace.draw(7, Model(sessions=2)), trace.draw(7, Model(sessions=5))

    assert many.sessions[:2] == few.sessions
    assert many.background == few.background


def test_a_session_has_enough_to_ask_for_if_it_never_has_to_wait() -> None:
    for session in trace.read().sessions:
        assert sum(ask.think_s for ask in session.asks) >= trace.PEOPLE.lasts_s


def test_all_weights_are_on_the_device_at_once_with_room_for_the_largest_step() -> None:
    largest = max(part.held_gb for kind in KINDS.values() for part in kind.parts)

    assert (sum(WEIGHTS_GB.values()) + 2 * largest) * 1e9 < MEMORY_BYTES


@given(st.sampled_from([*PUBLISHED.values(), *GENEROUS.values()]), st.integers(1, 20))
def test_one_more_step_makes_a_batch_longer_and_each_step_of_it_no_dearer(curve: dict[int, float], count: int) -> None:
    fewer, more = together_s(1.0, count, curve), together_s(1.0, count + 1, curve)

    assert together_s(1.0, 1, curve) == 1.0
    assert fewer <= more
    assert more / (count + 1) <= fewer / count + 1e-9


# -- the device ------------------------------------------------------------------------------------------------------


def asking(*asks: Ask, arrivals: tuple[Arrival, ...] = ()) -> Trace:
    """One session, and what else there is."""
    return Trace(
        seed=0,
        model=Model(lasts_s=1000.0),
        sessions=(Session(tenant="person", asks=asks),),
        background=(Background(tenant="others", arrivals=arrivals),),
    )


def simulated(of: Trace, contender: str = "deadline", sessions: int = 1, **world: object) -> Simulation:
    return Simulation(of, sessions, CONTENDERS[contender], World(**world)).run()  # type: ignore[arg-type]


@CONTENDER
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_has_the_device_to_itself_takes_what_its_steps_take(contender: str, kind: str) -> None:
    [job] = simulated(asking(Ask(1.0, kind, math.inf)), contender).jobs

    assert job.ended_at == pytest.approx(1.0 + alone_s(kind, World()))
    assert job.served_s == pytest.approx(alone_s(kind, World()))
    assert job.done == len(steps(kind, World()))
    assert job.shown_at is not None
    assert job.shown_at <= job.ended_at
    assert not is_late(job)


@CONTENDER
def test_the_device_does_all_that_is_asked_of_it_and_nothing_twice(contender: str) -> None:
    run = simulated(trace.draw(3, SHORT), contender, sessions=4)

    served_s = sum(job.served_s for job in run.jobs)
    assert all(job.given_up or job.done == len(job.steps) for job in run.jobs)
    assert run.busy_s <= run.lasts_s
    assert run.busy_s <= served_s + 1e-6
    assert served_s <= sum(alone_s(job.kind, World()) for job in run.jobs) + 1e-6


def test_the_same_trace_comes_to_the_same() -> None:
    first, second = (simulated(trace.draw(3, SHORT), sessions=3) for _ in range(2))

    assert outcome(first.jobs, 1.0) == outcome(second.jobs, 1.0)


def test_a_job_that_is_given_up_has_its_running_step_and_no_other() -> None:
    run = simulated(asking(Ask(1.0, "film", 3.0), Ask(1.0, "picture", math.inf)))

    film, picture = run.jobs
    step_s = steps("film", World())[1].seconds
    assert film.given_up
    assert film.served_s == pytest.approx(steps("film", World())[0].seconds + 2 * step_s)
    assert picture.at == pytest.approx(1.0 + 3.0 + 1.0)
    assert picture.ended_at == pytest.approx(picture.at + picture.alone_s)


def test_a_picture_waits_for_a_step_of_a_film_and_with_eager_sending_for_two() -> None:
    film_at_ten = (Arrival(10.0, "film"),)
    asked = asking(Ask(10.1, "picture", math.inf), arrivals=film_at_ten)
    step_s = steps("film", World())[1].seconds

    def waited_s(**world: object) -> float:
        picture = next(job for job in simulated(asked, **world).jobs if job.kind == "picture")
        assert picture.ended_at is not None
        return picture.ended_at - picture.at - picture.alone_s

    assert 0 < waited_s() <= step_s
    assert waited_s(eager=True) > step_s


def test_a_tenant_is_charged_what_its_jobs_took_and_nothing_for_what_was_dropped() -> None:
    run = simulated(asking(Ask(1.0, "film", 3.0)), predicted={"film": 0.01})  # two steps of it are with the device

    [film] = run.jobs
    assert film.given_up
    assert run.scheduler.shares.of("person", run.now) == pytest.approx(film.served_s, rel=0.02)


def test_films_in_bursts_are_as_many_and_come_when_the_first_of_each_does() -> None:
    arrivals = [Arrival(1.0, "film"), Arrival(2.0, "thumbnail"), Arrival(3.0, "film"), Arrival(4.0, "film")]

    found = list(asked(arrivals, World(films_at_once=2)))

    assert [(one.at, one.kind) for one in found] == [(1.0, "film"), (2.0, "thumbnail"), (1.0, "film"), (4.0, "film")]
    assert list(asked(arrivals, World(films=False))) == arrivals[1:2]


def test_thumbnails_go_together_and_films_do_not() -> None:
    thumbnails = simulated(asking(arrivals=(Arrival(0.0, "thumbnail"),) * 8))
    films = simulated(asking(arrivals=(Arrival(0.0, "film"),) * 2))

    assert thumbnails.now < 0.6 * 8 * alone_s("thumbnail", World())
    assert films.now == pytest.approx(2 * alone_s("film", World()))


def test_what_is_asked_for_by_deadline_comes_sooner_than_in_the_order_of_asking() -> None:
    of = trace.draw(2, SHORT)

    late = {
        name: outcome(simulated(of, name, sessions=4).jobs, 1.0).late
        for name in ("fifo", "run_to_completion", "deadline")
    }

    assert late["deadline"] < late["run_to_completion"] < late["fifo"]


# -- figures ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20))
def test_fairness_is_one_if_all_have_the_same_and_the_share_of_one_if_it_has_all(values: list[float]) -> None:
    assert jain([values[0]] * len(values)) == pytest.approx(1.0)
    assert 1 / len(values) <= jain(values) + 1e-9
    assert jain([values[0], *[0.0] * len(values)]) == pytest.approx(1 / (len(values) + 1))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.sampled_from([50, 95, 99]))
def test_a_percentile_is_the_least_that_so_many_are_not_above(values: list[float], of: int) -> None:
    found = percentile(values, of)

    assert found in values
    assert sum(value <= found for value in values) >= len(values) * of / 100
    assert all(sum(value <= less for value in values) < len(values) * of / 100 for less in values if less < found)


def test_what_is_given_up_counts_as_never_and_what_could_not_be_in_time_does_not_count() -> None:
    def job(seconds: float, **fields: object) -> Job:
        about = {"order": 0, "kind": "clip", "tenant": "a", "at": 5.0, "alone_s": 6.0, "patience_s": 50.0}
        return Job(**about | {"ended_at": 5.0 + seconds} | fields)  # type: ignore[arg-type]

    found = outcome([job(6.0), job(13.0), job(13.1), job(50.0, given_up=True), job(2.0, patience_s=2.0)], 0.5)

    assert (found.requests, found.late, found.given_up) == (4, 0.5, 0.25)
    assert found.kinds["clip"].done_s == (13.0, None, None)


def test_the_best_has_the_most_sessions_within_the_objective_and_of_several_is_least_late() -> None:
    def results(**late: list[float]) -> sweep.Results:
        """With one session and with `SHOWN`."""
        plan = sweep.Plan(contenders=tuple(late), worlds=(BELIEVED,), seeds=(1,), sessions=(1, sweep.SHOWN))
        blank = outcome([], 0.0)
        return sweep.Results(
            plan=plan,
            ran=tuple(
                sweep.Ran(sweep.Run(contender=name, sessions=sessions), replace(blank, late=each))
                for name, shares in late.items()
                for sessions, each in zip(plan.sessions, shares, strict=True)
            ),
        )

    found = results(few=[0.01, 0.06], many=[0.05, 0.05], gap=[0.06, 0.0])

    assert [found.capacities(name) for name in found.plan.contenders] == [[1], [sweep.SHOWN], [0]]
    assert found.best == "many"
    assert results(one=[0.0, 0.2], other=[0.0, 0.1]).best == "other"


def test_tables_are_put_in_place_of_those_with_the_same_head() -> None:
    page = "a\n\n| x |\n| --- |\n| old |\n| older |\n\nb\n\n| y |\n| --- |\n\n| x |\n| --- |\n| old |\n"

    put = tables.put(page, ["| x |\n| --- |\n| 1 |", "| x |\n| --- |\n| 2 |"])

    assert put == "a\n\n| x |\n| --- |\n| 1 |\n\nb\n\n| y |\n| --- |\n\n| x |\n| --- |\n| 2 |\n"
    with pytest.raises(ValueError, match="no table with the head"):
        tables.put(page, ["| z |\n| --- |\n| 1 |"])


def test_every_policy_is_run_with_all_that_is_planned() -> None:
    plan = sweep.Plan(contenders=("fifo",), worlds=(BELIEVED, "no films"), seeds=(1, 2), sessions=(1,), others=1)

    found = sweep.run(plan)

    assert [(one.run.world, one.run.seed, one.run.sessions) for one in found.ran] == [
        (BELIEVED, 1, 1),
        (BELIEVED, 2, 1),
        ("no films", 1, sweep.SHOWN),
    ]
    assert sweep.size(plan) == 3
