"""A parallel plan is checked before anything is loaded: its degrees, the ranks there are, what each model allows."""

import logging
from typing import Any

import msgspec
import pytest

from cards import parallel
from cards.errors import BadPlan, NothingToShare
from cards.parallel import ParallelPlan
from tests import branching, toy
from tests.parity import tiny, tiny_flux2, tiny_wan
from tests.parity.reference import family

BOTH = ParallelPlan({"cfg": 2, "ulysses": 2})


@pytest.mark.parametrize(
    ("text", "degrees"),
    [
        ("cfg", {"cfg": 2}),
        ("cfg=2", {"cfg": 2}),
        ("ulysses=4", {"ulysses": 4}),
        ("cfg=2, ulysses=3", {"cfg": 2, "ulysses": 3}),
        ("pp_patch=2", {"pp_patch": 2}),
    ],
)
def test_a_plan_is_read_and_survives_json(text: str, degrees: dict[str, int]) -> None:
    plan = parallel.parse(text)

    assert plan.degrees == degrees
    assert msgspec.json.decode(msgspec.json.encode(plan), type=ParallelPlan) == plan
    assert parallel.parse(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tensor=2", "'tensor' is no axis; there are cfg, ulysses"),
        ("cfg=two", "cfg=two is no degree; take a whole number from 1 on"),
        ("ulysses=0", "ulysses=0 is no degree; take a whole number from 1 on"),
        ("cfg=3", "cfg=3 is more than cfg can be shared by, which is 2"),
        ("cfg=2,cfg=2", "cfg is there twice"),
        ("", "'' is no axis"),
    ],
)
def test_a_plan_that_cannot_be_says_why(text: str, problem: str) -> None:
    with pytest.raises(BadPlan, match=f"parallel: {problem}"):
        parallel.parse(text)


def test_degrees_go_into_ranks() -> None:
    parallel.check_ranks(BOTH, 4)

    with pytest.raises(BadPlan, match="cfg=2,ulysses=2 is for 4 ranks and there are 2; set ranks to 4"):
        parallel.check_ranks(BOTH, 2)


def test_every_rank_has_a_place_on_each_axis() -> None:
    plan = ParallelPlan({"cfg": 2, "ulysses": 3})

    assert [plan.neighbours(rank) for rank in range(6)] == [(0, 1, 2)] * 3 + [(3, 4, 5)] * 3
    assert [plan.halves(rank) for rank in range(6)] == [(0, 3), (1, 4), (2, 5)] * 2


def wan(**options: str) -> Any:
    return family(tiny.wan(), "float32", **options)


REFUSED: dict[str, tuple[str, Any, str]] = {
    "one branch": ("cfg=2", lambda: toy.FAMILY, "its steps have one branch"),
    "one piece": ("ulysses=2", lambda: branching.FAMILY, "its forwards are run in one piece"),
    "a picture": ("ulysses=2", lambda: family(tiny_flux2.flux2(), "float32"), "its forwards are run in one piece"),
    "heads": ("ulysses=3", wan, "its 2 heads cannot be dealt out to 3 ranks alike"),
    "a policy that has the branches": ("cfg=2", lambda: wan(cfg="batched"), "cfg=batched evaluates all branches"),
    "a student": ("cfg=2", lambda: wan(recipe="dmd"), "a student has one branch"),
    "patches": ("pp_patch=2", wan, "no model here can be run on patches of different steps"),
    "patches of a causal model": (
        "pp_patch=2",
        lambda: wan(loop="causal"),
        "what its chunks attend to is of",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_does_not_allow_an_axis_is_named_with_the_reason(case: str) -> None:
    text, model, reason = REFUSED[case]
    with pytest.raises(NothingToShare, match=rf"{text} has nothing to share among ranks: \w+: {reason}"):
        parallel.check(parallel.parse(text), {"m": model()})


@pytest.mark.parametrize("options", [{}, {"recipe": "dmd"}, {"cfg": "batched"}])
def test_wan_deals_out_its_tokens(options: dict[str, str]) -> None:
    parallel.check(ParallelPlan({"ulysses": 2}), {"m": wan(**options)})
    parallel.check(ParallelPlan({"ulysses": 2}), {"m": family(tiny_wan.experts(), "float32")})


def test_a_model_that_cannot_is_only_named_where_another_can(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "keyframe.cards"):
        parallel.check(BOTH, {"wan": wan(), "flux2": family(tiny_flux2.flux2(), "float32"), "toy": toy.FAMILY})

    assert caplog.messages == [
        "parallel: cfg=2: every rank runs all of toy: its steps have one branch",
        "parallel: ulysses=2: every rank runs all of flux2: its forwards are run in one piece",
        "parallel: ulysses=2: every rank runs all of toy: its forwards are run in one piece",
    ]


def test_an_axis_of_one_asks_for_nothing() -> None:
    parallel.check(ParallelPlan({"cfg": 1, "ulysses": 1}), {"toy": toy.FAMILY})
