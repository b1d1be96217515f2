"""Units that are executed together: each answers for itself, whatever becomes of another."""

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from cards.errors import WeightsChanged
from cards.family import Asking, Components, Made
from cards.forward import Forward, single
from cards.wire import WorkPlan
from tests.workers.batches import (
    BAD,
    HUGE,
    WIDTH,
    Module,
    alone,
    asking,
    executor,
    known,
    made,
    module,
    together,
    tokens,
    unit,
    units,
)


@pytest.fixture
def model() -> Module:
    return module()


def test_a_row_that_makes_the_call_raise_fails_its_own_job_alone(model: Module) -> None:
    members = units(tokens(0), tokens(1, BAD), tokens(2))
    expected = alone(model, members)

    results = together(known(model), members)

    assert model.calls == [3, 1, 1, 1]
    assert made(results) == made(expected)
    assert results[1].error is not None
    assert (results[1].error.message, results[1].batch) == ("ValueError: a bad row", 3)


def test_weights_that_changed_under_the_process_end_it_and_no_job() -> None:
    def body(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Made:
        raise WeightsChanged(Path("weights"))

    with pytest.raises(WeightsChanged):
        together(executor(nn.Identity(), body), units(tokens(0), tokens(1)))


def test_a_batch_that_does_not_fit_is_split_in_halves(model: Module) -> None:
    members = units(*map(tokens, range(8)))
    expected = alone(model, members)
    runs = known(model)
    model.most = 2

    assert made(together(runs, members)) == made(expected)
    assert model.calls == [8, 4, 2, 2, 4, 2, 2]


def test_how_many_there_is_memory_for_is_tried_once(model: Module) -> None:
    members = units(*map(tokens, range(4)))
    expected = alone(model, members)
    runs = known(model)
    model.most = 2
    together(runs, members)
    model.calls.clear()

    assert made(together(runs, members)) == made(expected)
    assert model.calls == [2, 2]
    model.most = 1
    together(runs, members)
    model.calls.clear()
    together(runs, members)
    assert model.calls == [1, 1, 1, 1], "of what fitted once there may be too much now"


def test_one_that_fits_in_no_way_is_out_of_memory_and_the_others_are_not(model: Module) -> None:
    members = units(tokens(0), tokens(1, HUGE), tokens(2), tokens(3))
    expected = alone(model, members)
    runs = known(model)

    results = together(runs, members)

    assert [one.error and one.error.kind for one in results] == [None, "oom", None, None]
    assert made(results) == made(expected)
    assert model.calls == [4, 2, 1, 1, 2, 1], "it is tried once more alone"


def test_what_a_forward_had_made_when_it_failed_is_gone_before_the_next_is_evaluated() -> None:
    made: list[weakref.ref[Tensor]] = []

    class Wide(Module):
        def forward(self, x_BLD: Tensor) -> Tensor:
            assert not [one for one in made if one() is not None]
            hidden = x_BLD * 2
            made.append(weakref.ref(hidden))
            return super().forward(x_BLD)

    runs = executor(Wide().requires_grad_(False))

    results = together(runs, units(tokens(0, BAD), tokens(1, HUGE), tokens(2)))

    assert [one.error and one.error.kind for one in results] == ["error", "oom", None]


def test_a_step_alone_that_runs_out_of_memory_is_tried_once_more_in_pieces(model: Module) -> None:
    def doubled(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Asking:
        rows = {"x_BLD": torch.cat([reads["x"], reads["x"] + 1])}
        outputs = single((yield {"both": Forward(components["model"], rows, part=1)}))
        return Made({"y": outputs["both"]})

    expected = alone(model, units(tokens(0)), doubled)
    model.calls.clear()
    model.most = 1

    assert made(alone(model, units(tokens(0)), doubled)) == made(expected)
    assert model.calls == [2, 1, 1]


def test_numbers_that_are_none_stay_in_their_row(model: Module) -> None:
    members = units(tokens(0), torch.full((1, 16, WIDTH), float("nan")), tokens(2))
    expected = alone(model, members)
    runs = executor(model)

    for _ in range(2):  # also where it is measured
        results = together(runs, members)
        assert made(results) == made(expected)
        assert [one.error and one.error.kind for one in results] == [None, "nan", None]
    assert model.calls[-1] == 3


def test_a_member_that_cannot_begin_answers_for_itself(model: Module) -> None:
    lost, out_of_date, broken, well = (unit(f"job-{n}", tokens(n)) for n in range(4))
    runs = executor(model)
    late = replace(out_of_date[0], id=replace(out_of_date[0].id, epoch=0))
    runs.run(*out_of_date)
    nobody = replace(broken[0], plan=replace(broken[0].plan, kind="nothing"))

    results = together(runs, [(replace(lost[0], inline=()), []), (late, out_of_date[1]), (nobody, broken[1]), well])

    kinds = [one.error and one.error.kind for one in results]
    assert kinds == ["corrupt_checkpoint", "error", "error", None]
    assert [one.batch for one in results] == [1, 1, 2, 2], "two were run"
    assert results[0].seconds == 0.0 < results[3].seconds == results[3].batch_seconds / 2
    assert made(results)[3:] == made(alone(model, [well]))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_body_that_raises_takes_no_other_with_it(model: Module, when: str) -> None:
    def failing(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Asking:
        if when == "before" and reads["x"][0, 0, 0] == 1.0:
            raise KeyError("before")
        outputs = single((yield {"one": Forward(components["model"], {"x_BLD": reads["x"]})}))
        if reads["x"][0, 0, 0] == 1.0:
            raise KeyError("after")
        return Made({"y": outputs["one"]})

    members = units(tokens(0), tokens(1, 1.0), tokens(2))

    results = together(executor(model, failing), members)

    assert made(results) == made(alone(model, members, failing))
    assert results[1].error is not None
    assert results[1].error.message == f"KeyError: '{when}'"


ASKED: dict[str, Any] = {
    "no forward": {"one": None},
    "no forwards by name": [1],
    "no rows": {"one": Forward(abs, {})},
    "a row of none": {"one": Forward(torch.clone, {"input": torch.zeros(0, WIDTH)})},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_body_that_asks_for_what_cannot_share_is_answered_as_if_it_were_alone(model: Module, asked: Any) -> None:
    def strange(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Asking:
        if reads["x"][0, 0, 0] == 1.0:
            yield asked
        return (yield from asking(components, plan, reads))

    members = units(tokens(0), tokens(1, 1.0), tokens(2))

    results = together(executor(model, strange), members)

    assert made(results) == made(alone(model, members, strange))
    assert [one.error for one in results][::2] == [None, None]


@pytest.mark.parametrize("many", [1, 2])
def test_a_body_that_makes_nothing_is_an_error_of_its_own(model: Module, many: int) -> None:
    def nothing(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Any:
        yield {}

    results = together(executor(model, nothing), units(*map(tokens, range(many))))

    assert {one.error and one.error.message for one in results} == {
        "TypeError: a step returned NoneType where Made is wanted"
    }
