"""Units that are executed together make what each makes alone."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from cards.extensions.observers import open_observers
from cards.family import Asking, Components, Made
from cards.folding import fold_of
from cards.forward import OUTPUT, Forward, single
from cards.wire import Refold, UnitId, WorkPlan, promised
from tests.workers.batches import (
    BAD,
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
from tests.workers.units import CountingBlobs, digests
from workers import sharing
from workers.execute import Executor
from workers.loaded import Loaded
from workers.observed import ObservedExecutor
from workers.sharing import Sharing


@pytest.fixture
def model() -> Module:
    return module()


def plain(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Made:
    return Made({"y": components["model"](reads["x"])})


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
