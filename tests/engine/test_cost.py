"""What steps are taken to cost: from how much work they are, and from what they took."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cards.request import GenerationRequest, ResolvedRequest, resolve
from cards.wire import ModelIdentity
from engine.scheduling import cost
from engine.scheduling.cost import CPU_FLOPS, LEAST_S, LEAST_SHARE, UNKNOWN_S, CostModel, Figure, Rate, StepKind
from engine.scheduling.forecast import Forecasts, policy_of, precision_of, shape_of, weights_bytes
from tests import toy
from tests.measured import FAMILY

KIND = StepKind("default", "device=cpu isa=AVX2 ranks=1", ModelIdentity("toy", "c", "w"), "count", "count", "8x8x5")
GPU = replace(KIND, device="device=NVIDIA_H200 ranks=1")


def timed(*seconds: float, flops: int = 0) -> Figure:
    """After a first step that warmed the worker up."""
    figure = CostModel().figure(KIND, flops)
    for one in (100.0, *seconds):
        figure.took(one, "worker")
    return figure


def test_what_has_not_been_timed_is_predicted_from_its_work_and_reckoned_with_a_margin() -> None:
    figure = CostModel().figure(KIND, int(3 * CPU_FLOPS))

    assert figure.expected_s == pytest.approx(3.0)
    assert figure.careful_s > figure.expected_s
    assert CostModel().figure(GPU, int(3 * CPU_FLOPS)).expected_s < 0.1
    assert CostModel({KIND.device: CPU_FLOPS / 2}).figure(KIND, int(3 * CPU_FLOPS)).expected_s == pytest.approx(6.0)


def test_a_step_of_next_to_no_work_says_little_of_a_large_one() -> None:
    """All of its time is what any step takes, and by its rate the other would take a day."""
    costs = CostModel()
    small = costs.figure(replace(KIND, kind="small"), 10**6)
    for _ in range(2):
        small.took(0.001, "worker")

    assert costs.figure(KIND, int(CPU_FLOPS)).expected_s == pytest.approx(LEAST_SHARE)


def test_of_what_nothing_is_known_little_is_hoped() -> None:
    assert CostModel().figure(KIND).expected_s == UNKNOWN_S
    assert CostModel().figure(KIND, 1).careful_s == LEAST_S


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=50))
def test_the_mean_lies_within_what_was_timed_and_the_careful_figure_above_it(seconds: list[float]) -> None:
    figure = timed(*seconds)

    assert min(seconds) <= figure.mean_s * 1.000001
    assert figure.mean_s <= max(seconds) * 1.000001
    assert figure.careful_s >= figure.expected_s == figure.mean_s
    assert figure.samples == len(seconds)


def test_steps_that_take_ever_the_same_time_need_no_care() -> None:
    assert timed(*[0.5] * 100).careful_s == pytest.approx(0.5, rel=0.01)


def test_a_figure_follows_what_changes() -> None:
    figure = timed(*[0.1] * 50)
    for _ in range(50):
        figure.took(1.0, "worker")

    assert figure.mean_s == pytest.approx(1.0, rel=0.05)


def test_most_steps_take_no_longer_than_the_careful_figure_says() -> None:
    chance = random.Random(1)
    figure = timed(*[chance.gauss(1.0, 0.1) for _ in range(200)])

    late = sum(chance.gauss(1.0, 0.1) > figure.careful_s for _ in range(1000))
    assert 0 < late < 200


def test_the_first_step_on_each_worker_counts_apart() -> None:
    model = CostModel()
    figure = model.figure(KIND)
    for worker, seconds in (("a", 30.0), ("a", 1.0), ("b", 10.0), ("b", 1.0)):
        figure.took(seconds, worker)

    assert (figure.mean_s, figure.samples, figure.cold_s, figure.cold) == (1.0, 2, 20.0, 2)
    model.left("a")
    figure.took(30.0, "a")
    assert (figure.samples, figure.cold) == (2, 3)


def test_where_each_step_is_a_first_one_the_next_is_too() -> None:
    model = CostModel()
    figure = model.figure(KIND, int(0.5 * CPU_FLOPS))
    for _ in range(10):
        model.left("a", KIND.model)
        figure.took(10.0, "a")
    assert (figure.expected_s, figure.careful_s) == (10.0, 10.0)

    figure.took(0.4, "a")
    assert figure.expected_s == 0.4


def test_the_first_batch_with_other_adapters_counts_apart() -> None:
    figure = CostModel().figure(replace(KIND, batch=2))
    for adapters, seconds in (((), 5.0), ((), 1.0), ((("x", 1.0),), 5.0), ((("x", 1.0),), 1.0), ((), 1.0)):
        figure.took(seconds, "a", adapters)

    assert (figure.mean_s, figure.samples, figure.cold) == (1.0, 3, 2)


def test_a_worker_that_has_loaded_a_model_again_is_cold_for_that_model() -> None:
    model = CostModel()
    figure, other = model.figure(KIND), model.figure(replace(KIND, model=ModelIdentity("other", "c", "w")))
    for one in (figure, other):
        for worker in ("a", "b"):
            one.took(1.0, worker)
    model.left("a", KIND.model)

    assert (figure.warm, other.warm) == ({("b", ())}, {("a", ()), ("b", ())})


def test_what_one_kind_teaches_of_a_device_serves_the_others() -> None:
    model = CostModel()
    known, unknown = model.figure(KIND, 10**12), model.figure(replace(KIND, shape="16x16x5"), 4 * 10**12)
    for seconds in (9.0, 0.5, 0.5):
        known.took(seconds, "worker")

    assert unknown.expected_s == pytest.approx(2.0)
    assert model.figure(GPU, 10**12).expected_s != known.expected_s


def test_what_nobody_timed_there_is_taken_to_make_no_more_of_a_device_than_what_makes_least_of_it() -> None:
    """A transformer makes 297 TFLOP/s of a GPU, a decoder 102, its upscaler 30."""
    model = CostModel()
    denoise, decode, upscale = (
        model.figure(replace(GPU, loop=loop), 10**13) for loop in ("denoise", "decode", "upscale")
    )
    for _ in range(50):
        denoise.took(10 / 297, "worker")
    assert decode.careful_s >= 10 / 102

    for _ in range(50):
        upscale.took(10 / 30, "worker")
    assert decode.expected_s == pytest.approx(10 / 30)
    for _ in range(2):
        decode.took(10 / 102, "worker")
    assert model.figure(replace(GPU, loop="decode", shape="16x16x5"), 10**13).expected_s == pytest.approx(10 / 102)
    assert model.figure(replace(GPU, loop="denoise", shape="16x16x5"), 10**13).expected_s == pytest.approx(10 / 297)


def test_kinds_differ_in_all_that_makes_steps_take_longer_and_in_nothing_else() -> None:
    model = CostModel()
    others = [
        {"shape": "9x9x5"},
        {"batch": 2},
        {"policy": "guided"},
        {"device": "x"},
        {"pool": "p"},
        {"precision": "b"},
    ]

    assert model.figure(replace(KIND)) is model.figure(KIND)
    assert all(model.figure(replace(KIND, **other)) is not model.figure(KIND) for other in others)


def test_what_is_remembered_is_bounded() -> None:
    model = CostModel()
    for number in range(cost.MOST + 10):
        model.figure(replace(KIND, shape=str(number))).took(1.0, "worker")

    assert len(list(model.measured())) == cost.MOST


def test_a_rate_is_what_was_done_in_the_time() -> None:
    rate = Rate(1.0)
    rate.took(100, 2.0)

    assert rate.flops == 50.0


# -- what a job will take -------------------------------------------------------------------------------------------


def request(**fields: object) -> ResolvedRequest:
    asked = GenerationRequest(model="toy", prompt="a count", **fields)  # type: ignore[arg-type]
    return resolve(asked, FAMILY.card, random.Random(1))


def test_a_forecast_has_the_steps_of_each_kind_and_the_bytes_of_the_largest() -> None:
    forecast = Forecasts().make(request(steps=3, guidance=3.0), FAMILY)

    assert [(kind.node, kind.kind, kind.steps) for kind in forecast.kinds] == [
        ("prepare", "prepare", 1),
        ("count", "count", 3),
        ("finish", "finish", 1),
    ]
    assert forecast.demand(7).peak_bytes == 2 << 30
    assert forecast.demand(7).nbytes == 7 + (2 << 30) + forecast.resident_bytes


def test_a_forecast_is_made_once_for_all_jobs_of_a_shape() -> None:
    forecasts = Forecasts()
    made = forecasts.make(request(), FAMILY)

    assert forecasts.known(request(seed=9, priority=3, tenant="t"), FAMILY) is made
    assert forecasts.known(request(steps=9), FAMILY) is None


def test_a_family_that_says_no_sizes_needs_no_look_at_a_disk() -> None:
    known = Forecasts().known(request(), toy.FAMILY)

    assert known is not None
    assert known.demand(0).nbytes == 0


def test_the_words_of_a_kind_come_from_request_and_card() -> None:
    card = FAMILY.card

    assert (policy_of(request(guidance=1.0)), policy_of(request(guidance=3.0))) == ("unguided", "guided")
    assert policy_of(replace(request(guidance=3.0), interceptors={"step_skip": 0.1})) == "guided+step_skip"
    assert shape_of(replace(request(), size="832x480", frames=81)) == "832x480x81"
    assert (precision_of(card, "count"), precision_of(card, "prepare"), shape_of(request())) == ("float32", "", "")
    assert weights_bytes(card) == 0
