"""Units that are executed together: each answers for itself, whatever becomes of another."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from cards.errors import WeightsChanged
from cards.extensions.observers import open_observers
from cards.family import Asking, Components, Made
from cards.folding import fold_of
from cards.forward import OUTPUT, Forward, single
from cards.wire import Batch, Refold, StepResult, UnitId, WorkPlan, WorkUnit, promised
from tests.workers.units import CountingBlobs, digests, sent
from workers import sharing
from workers.execute import Executor
from workers.loaded import Loaded
from workers.observed import ObservedExecutor
from workers.sharing import Sharing

WIDTH = 32
BAD, HUGE = 13.0, 17.0
"""A row that begins so makes the module raise, or run out of memory."""


class Module(nn.Module):
    """It says how many rows it was called with, and takes `most` at a time."""

    def __init__(self, most: int = 100) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.calls: list[int] = []
        self.most = most

    def forward(self, x_BLD: Tensor) -> Tensor:
        self.calls.append(len(x_BLD))
        first = x_BLD[:, 0, 0]
        if (first == BAD).any():
            raise ValueError("a bad row")
        if (first == HUGE).any() or len(x_BLD) > self.most:
            raise MemoryError("it does not fit")
        made: Tensor = self.linear(x_BLD)
        return made


@pytest.fixture
def model() -> Module:
    torch.manual_seed(0)
    return Module().requires_grad_(False)


def asking(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Asking:
    """The branches of a step: two, if it is guided."""
    branches = ("text", "negative") if plan.scalars.get("guided") else ("text",)
    made = single((yield {branch: Forward(components["model"], {"x_BLD": reads["x"]}) for branch in branches}))
    return Made({"y": sum(made.values(), torch.zeros(()))})


def plain(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Made:
    return Made({"y": components["model"](reads["x"])})


def executor(model: nn.Module, body: Any = asking, **more: Any) -> Executor:
    return Executor({"toy": Loaded({"model": model}, {"step": body, **more})}, CountingBlobs())


def tokens(seed: int, first: float = 0.5, length: int = 16) -> Tensor:
    x_BLD = torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(seed))
    x_BLD[0, 0, 0] = first
    return x_BLD


def unit(job: str, x: Tensor, version: int = 1, **fields: Any) -> tuple[WorkUnit, list[bytes]]:
    refs, frames = sent(x=x)
    plan = WorkPlan(instance="toy", loop="step", kind="step", step=0, reads=refs, together=True, **fields)
    return WorkUnit(UnitId(job, 1, version, 1, version), plan, digests(refs), digests(refs)), frames


def units(*inputs: Tensor, **fields: Any) -> list[tuple[WorkUnit, list[bytes]]]:
    return [unit(f"job-{number}", x, **fields) for number, x in enumerate(inputs)]


def together(runs: Executor, members: Sequence[tuple[WorkUnit, list[bytes]]]) -> list[StepResult]:
    batch = Batch(tuple(unit for unit, _ in members))
    return [answer.result for answer in runs.run_batch(batch, [frame for _, frames in members for frame in frames])]


def alone(model: nn.Module, members: Sequence[tuple[WorkUnit, list[bytes]]], body: Any = asking) -> list[StepResult]:
    return [executor(model, body).run(unit, frames).result for unit, frames in members]


def made(results: Sequence[StepResult]) -> list[tuple[UnitId, Any, str | None]]:
    return [(one.id, one.tensors, one.error and one.error.kind) for one in results]


def known(model: Module, body: Any = asking) -> Executor:
    """An executor that has met such forwards before, whatever their number."""
    runs = executor(model, body)
    for size in range(2, 9):
        together(runs, units(*(tokens(seed + 100) for seed in range(size))))
    model.calls.clear()
    return runs


# -- sharing ----------------------------------------------------------------------------------------------------


def test_each_unit_is_answered_in_order_as_if_it_were_alone(model: Module) -> None:
    members = units(*map(tokens, range(4)))
    expected = alone(model, members)
    runs = known(model)

    results = together(runs, members)

    assert model.calls == [4]
    assert made(results) == made(expected)
    assert {one.batch for one in results} == {4}
    assert len({one.batch_seconds for one in results}) == 1
    assert sum(one.seconds for one in results) == pytest.approx(results[0].batch_seconds)


def test_the_branches_of_all_share_a_call_as_far_as_it_has_room(model: Module) -> None:
    members = [unit(f"job-{n}", tokens(n), scalars={"guided": n != 1}) for n in range(4)]
    expected = alone(model, members)
    runs = known(model)
    runs.sharing = Sharing(most_rows=4)
    together(runs, members)
    model.calls.clear()

    assert made(together(runs, members)) == made(expected)
    assert model.calls == [3, 4]


def test_what_does_not_go_together_is_executed_one_by_one(model: Module) -> None:
    members = units(tokens(0), tokens(2, length=8), tokens(1))
    expected = alone(model, members)
    assert made(together(known(model), members)) == made(expected)
    assert model.calls == [2, 1]

    apart = units(tokens(0), tokens(1))
    apart = [(replace(one, plan=replace(one.plan, together=False)), frames) for one, frames in apart]
    runs = known(model)
    assert {one.batch for one in together(runs, apart)} == {1}
    assert model.calls == [1, 1]


def test_a_body_that_asks_for_nothing_is_run_after_the_one_before_it(model: Module) -> None:
    members = units(*map(tokens, range(3)))

    assert made(together(executor(model, plain), members)) == made(alone(model, members))
    assert model.calls == [1] * 6


def test_two_units_of_one_job_are_executed_one_after_the_other(model: Module) -> None:
    first, frames = unit("job", tokens(0))
    promise = promised(first.id, "y")
    second = replace(
        first,
        id=replace(first.id, version=2, serial=2),
        plan=replace(first.plan, reads={"x": promise}),
        inline=(),
        keep=(promise.digest,),
    )

    results = together(executor(model), [(first, frames), (second, []), unit("other", tokens(1))])

    assert [one.error for one in results] == [None] * 3
    assert [one.batch for one in results] == [1, 2, 2]


def test_a_member_whose_tensors_must_be_made_again_is_one_like_the_others(model: Module) -> None:
    def fold(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Made:
        return Made({"x": reads["made/y"] * 0.5})

    def runs() -> Executor:
        return executor(model, **{"step.fold": fold})

    before, frames = unit("job-0", tokens(0), derives=("x",), snapshot=False)
    first = runs().run(before, frames)
    refold = Refold(fold_of(before.plan, {"y": first.result.tensors["y"]}, {}), {"x": first.result.tensors["x"]})
    needs = {**before.plan.reads, "made/y": first.result.tensors["y"]}
    following = replace(
        before,
        plan=replace(before.plan, reads={"x": first.result.tensors["x"]}),
        inline=digests(needs),
        keep=digests(needs),
        refolds=(refold,),
    )
    members = [(following, [*frames, *first.frames]), *units(tokens(5))[0:1]]
    members[1] = (replace(members[1][0], id=UnitId("job-1", 1, 1, 1)), members[1][1])

    expected = [runs().run(one, data).result for one, data in members]

    assert made(together(runs(), members)) == made(expected)
    assert [one.error for one in expected] == [None, None]


# -- exactness is measured --------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A leaf whose output follows from how many rows share its call."""

    def forward(self, x_BLD: Tensor) -> Tensor:
        return x_BLD * (1 + len(x_BLD))


class Scaled(Counting):
    """One that is also told something else, and by name."""

    def forward(self, x_BLD: Tensor, add: float = 0.0, *, scale: float = 1.0) -> Tensor:
        return super().forward(x_BLD) * scale + add


class Telling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled()

    def forward(self, x_BLD: Tensor) -> Tensor:
        made: Tensor = self.scaled(x_BLD, 1.0, scale=0.5)
        return made


class Around(Module):
    def __init__(self, leaf: nn.Module | None, over: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.leaf = leaf or nn.Identity()
        self.over = over

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.over(super().forward(self.leaf(x_BLD)))


class Scaling(nn.Module):
    def __init__(self, over: Callable[..., Tensor]) -> None:
        super().__init__()
        self.over = over

    def forward(self, x_BLD: Tensor, by: Any) -> Tensor:
        return self.over(x_BLD, by)


@pytest.mark.parametrize("leaf", [Counting, Telling])
def test_a_module_that_minds_its_rows_goes_part_by_part_and_the_others_do_not(
    leaf: type[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    model = Around(leaf(), lambda x: x)
    members = units(*map(tokens, range(3)))
    expected = alone(model, members)

    assert made(together(executor(model), members)) == made(expected)
    runs = known(model)
    assert made(together(runs, members)) == made(expected)
    assert model.calls == [3]
    assert not caplog.messages
    assert all("forward" not in vars(module) for module in model.modules()), "nothing stays on a module"


def test_what_minds_its_rows_in_no_module_of_its_own_does_not_share(caplog: pytest.LogCaptureFixture) -> None:
    model = Around(None, lambda x: x + x.mean(dim=0))
    members = units(*map(tokens, range(3)))
    expected = alone(model, members)
    runs = executor(model)

    for _ in range(2):
        model.calls.clear()
        assert made(together(runs, members)) == made(expected)
    assert model.calls == [1, 1, 1]
    [said] = caplog.messages
    assert said == "Around: 3 forwards in one call make other bits than each alone, and are evaluated one by one"


@pytest.mark.parametrize("inside", [lambda scale: (scale,), lambda scale: {"by": [scale]}], ids=["tuple", "dict"])
def test_forwards_share_nothing_whose_repr_does_not_say_all(inside: Callable[[Tensor], Any]) -> None:
    """A tensor in a tuple is shown to four digits."""

    def scaled(x_BLD: Tensor, by: Any) -> Tensor:
        [scale] = by["by"] if isinstance(by, dict) else by
        return x_BLD * scale

    def body(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Asking:
        by = inside(torch.full((WIDTH,), 1.5 + float(plan.scalars["more"])))
        made = single((yield {"one": Forward(components["model"], {"x_BLD": reads["x"]}, {"by": by})}))
        return Made({"y": made["one"]})

    members = [unit(f"job-{n}", tokens(n), scalars={"more": n * 3e-5}) for n in range(2)]
    runs = executor(Scaling(scaled), body)
    together(runs, [unit(f"job-{n}", tokens(n), scalars={"more": 0.0}) for n in range(2)])

    assert made(together(runs, members)) == made(alone(Scaling(scaled), members, body))


@pytest.mark.parametrize("strides", [(1, 16), (32, 1), (0, 1), (64, 2)])
def test_rows_keep_the_layout_that_they_have_alone(strides: tuple[int, int]) -> None:
    seen: list[tuple[int, ...]] = []
    rows = [torch.randn(2048).as_strided((1, 16, WIDTH), (1024, *strides)) for _ in range(3)]

    def look(x: Tensor) -> Tensor:
        seen.append(x.stride()[1:])
        return x.contiguous()

    made = sharing.call([Forward(look, {"x": row}) for row in rows], ())

    assert [one[OUTPUT].tolist() for one in made] == [row.tolist() for row in rows]
    assert seen == [strides if 0 not in strides else (WIDTH, 1)]


def test_the_ranks_that_share_branches_do_so_for_one_step_after_the_other(model: Module) -> None:
    asked: list[list[str]] = []

    def branches(forwards: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        asked.append([*forwards])
        return {branch: forward() for branch, forward in forwards.items()}

    members = [unit(f"job-{n}", tokens(n), scalars={"guided": True}) for n in range(2)]
    expected = alone(model, members)
    runs = Executor({"toy": Loaded({"model": model}, {"step": asking}, {"branches": branches})}, CountingBlobs())

    results = together(runs, members)

    assert made(results) == made(expected)
    assert asked == [["text", "negative"]] * 2
    assert {one.batch for one in results} == {1}


# -- failures ---------------------------------------------------------------------------------------------------


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


# -- observers --------------------------------------------------------------------------------------------------


def observed(model: Module, *extensions: str) -> ObservedExecutor:
    return ObservedExecutor(executor(model)._models, CountingBlobs(), open_observers(extensions))


def test_an_observer_sees_each_step_of_a_batch_as_its_own(model: Module) -> None:
    members = units(tokens(0), torch.full((1, 16, WIDTH), float("nan")), tokens(2, BAD), tokens(3))

    results = together(runs := observed(model, "nan_watch"), members)

    assert [one.error and one.error.kind for one in results] == [None, "nan", "error", None]
    assert {one.batch for one in results} == {4}
    assert made(together(runs, units(tokens(0), tokens(3)))) == made(alone(model, units(tokens(0), tokens(3))))


@pytest.mark.parametrize("extension", ["profiler", "taps:model"])
def test_steps_that_are_looked_into_are_executed_one_after_the_other(model: Module, extension: str) -> None:
    members = units(tokens(0), tokens(1))

    results = together(observed(model, extension), members)

    assert model.calls == [1, 1]
    assert {one.batch for one in results} == {1}
    assert all(one.observed for one in results)
    assert made(results) == made(alone(model, members))
