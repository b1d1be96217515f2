"""A unit whose step derives tensors: what of it is stored, and how a fresh device makes it again."""

from collections.abc import Mapping

import pytest
import torch
from msgspec.structs import replace

from cards import codec
from cards.family import Made
from cards.folding import fold_of
from cards.wire import INLINE_LIMIT, Refold, StepResult, TensorRef, WorkUnit
from tests.workers.test_ranks import pool
from tests.workers.units import CountingBlobs, digests, executor, sent, unit
from workers.errors import BlobsUnavailable, BrokenPromise, FoldDiffers
from workers.execute import Executor
from workers.resident import Held

X = torch.arange(INLINE_LIMIT / 2).reshape(2, -1)
REFS, FRAMES = sent(x=X)


def output(reads: Mapping[str, torch.Tensor]) -> Made:
    return Made({"m": reads["x"].sum(0) / 7})


def fold(reads: Mapping[str, torch.Tensor]) -> Made:
    return Made({"x": reads["x"] - reads["made/m"], "before": reads["x"]})


def other_fold(reads: Mapping[str, torch.Tensor]) -> Made:
    return Made({"x": reads["x"] - reads["made/m"] - 1, "before": reads["x"]})


def stepping(blobs: CountingBlobs | None = None, **options: object) -> Executor:
    return executor(output, blobs, **{"fold": fold, **options})  # type: ignore[arg-type]


def folding(reads: dict[str, TensorRef], *, snapshot: bool = False, **fields: object) -> WorkUnit:
    """A unit that keeps what it reads and is given what is `inline`."""
    asked = unit(reads, keep=digests(reads), **fields)  # type: ignore[arg-type]
    return replace(asked, plan=replace(asked.plan, derives=("x", "before"), snapshot=snapshot))


def first(runs: Executor, *, snapshot: bool = False) -> StepResult:
    result = runs.run(folding(REFS, snapshot=snapshot, inline=digests(REFS)), FRAMES).result
    assert result.error is None, result.error
    return result


def state(result: StepResult) -> dict[str, TensorRef]:
    return {"x": result.tensors["x"]}


def refold(result: StepResult) -> Refold:
    plan = fold_of(folding(REFS).plan, {"m": result.tensors["m"]}, result.scalars)
    return Refold(plan, state(result))


def test_what_is_derived_is_named_and_not_stored() -> None:
    blobs = CountingBlobs()

    result = first(stepping(blobs))

    assert result.tensors.keys() == {"m", "x", "before"}
    assert result.tensors["before"] == REFS["x"]
    assert blobs.puts == [result.tensors["m"].digest]
    assert result.tensors["x"] == codec.encode(X - X.sum(0) / 7)[0]


def test_a_small_tensor_that_is_derived_does_not_travel() -> None:
    runs = executor(lambda reads: Made({"m": torch.ones(2)}), fold=lambda reads: Made({"x": reads["made/m"] + 1}))
    asked = unit()

    answer = runs.run(replace(asked, plan=replace(asked.plan, derives=("x",), snapshot=False)), [])

    assert answer.result.inline == (answer.result.tensors["m"].digest,)


def test_a_snapshot_stores_all_of_it() -> None:
    blobs = CountingBlobs()

    result = first(stepping(blobs), snapshot=True)

    assert blobs.puts == [result.tensors["m"].digest, result.tensors["x"].digest]  # what came with the unit is there


def test_a_snapshot_stores_what_is_handed_through_if_nobody_has() -> None:
    blobs = CountingBlobs()
    runs = stepping(blobs)
    before = first(runs).tensors["x"]

    result = runs.run(folding({"x": before}, snapshot=True), []).result

    assert result.tensors["before"] == before
    assert blobs.puts[1:] == [result.tensors[name].digest for name in ("m", "x", "before")]


def test_a_snapshot_that_the_store_refused_is_stored_when_it_is_run_again() -> None:
    class Refusing(CountingBlobs):
        refuses = False

        def put_named(self, blobs: Mapping[str, bytes]) -> None:
            if self.refuses:
                raise BlobsUnavailable("the disk is full")
            super().put_named(blobs)

    blobs = Refusing()
    runs = stepping(blobs)
    before = first(runs).tensors["x"]
    snapshot = folding({"x": before}, snapshot=True)
    blobs.refuses = True
    refused = runs.run(snapshot, []).result
    blobs.refuses = False

    result = runs.run(snapshot, []).result

    assert refused.error is not None
    assert {ref.digest for ref in result.tensors.values()} <= {*blobs.puts}


def test_a_tensor_that_is_stored_is_handed_through_a_folding_step_for_nothing() -> None:
    blobs = CountingBlobs()
    runs = stepping(blobs)
    before = first(runs, snapshot=True).tensors["x"]
    stored = len(blobs.puts)

    for snapshot in (False, True):
        result = runs.run(folding({"x": before}, snapshot=snapshot), []).result
        assert result.tensors["before"] == before

    assert before.digest not in blobs.puts[stored:]


# -- made again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True])
def test_a_fresh_device_makes_the_state_again_and_goes_on_with_the_same_bytes(fresh: bool) -> None:
    blobs = CountingBlobs()
    runs = stepping(blobs)
    before = first(runs)
    following = folding(state(before))
    if fresh:
        runs = stepping(blobs)
        following = replace(following, refolds=(refold(before),), inline=digests(REFS))

    result = runs.run(following, FRAMES if fresh else []).result

    assert result.error is None, result.error
    assert (
        result.tensors
        == stepping()
        .run(folding(sent(x=X - X.sum(0) / 7)[0], inline=digests(state(before))), [codec.encode(X - X.sum(0) / 7)[1]])
        .result.tensors
    )
    assert before.tensors["x"].digest not in blobs.puts


def test_what_a_refold_took_is_forgotten_before_the_step_runs() -> None:
    blobs = CountingBlobs()
    before = first(stepping(blobs))
    held: list[Held] = []

    def watching(reads: Mapping[str, torch.Tensor]) -> Made:
        held.append(runs.resident.held())
        return output(reads)

    runs = executor(watching, blobs, fold=fold)
    following = replace(folding(state(before)), refolds=(refold(before),), inline=digests(REFS))
    assert runs.run(following, FRAMES).result.error is None

    assert held == [Held(1, X.nbytes)]


def test_what_was_made_again_is_stored_by_the_next_snapshot() -> None:
    blobs = CountingBlobs()
    before = first(stepping(blobs))
    following = replace(folding(state(before), snapshot=True), refolds=(refold(before),), inline=digests(REFS))

    stepping(blobs).run(following, FRAMES)

    assert before.tensors["x"].digest in blobs.puts


def test_a_fold_is_given_the_layout_that_a_refold_will_be_given() -> None:
    """An expanded tensor cannot be stored as it is, and other strides would be another tensor."""
    blobs = CountingBlobs()

    def expanded(reads: Mapping[str, torch.Tensor]) -> Made:
        return Made({"m": torch.ones(4, 1, dtype=torch.float64).expand(4, INLINE_LIMIT)[1:]})

    def strided(reads: Mapping[str, torch.Tensor]) -> Made:
        return Made({"x": reads["made/m"] + 1, "before": torch.tensor(reads["made/m"].stride())})

    result = first(executor(expanded, blobs, fold=strided))
    again = fold_of(folding(REFS).plan, {"m": result.tensors["m"]}, {})
    derived = {name: result.tensors[name] for name in ("x", "before")}
    following = replace(folding(derived), refolds=(Refold(again, derived),), inline=digests(REFS))

    assert executor(expanded, blobs, fold=strided).run(following, FRAMES).result.error is None


# -- what must not go unseen ----------------------------------------------------------------------------------------


def test_a_fold_that_makes_other_bits_is_a_corrupt_checkpoint() -> None:
    blobs = CountingBlobs()
    before = first(stepping(blobs))
    following = replace(folding(state(before)), refolds=(refold(before),), inline=digests(REFS))

    error = stepping(blobs, fold=other_fold).run(following, FRAMES).result.error

    assert error is not None
    assert (error.kind, error.message.split(":")[0]) == ("corrupt_checkpoint", FoldDiffers.__name__)
    assert before.tensors["x"].digest[:16] in error.message


def test_a_fold_that_makes_no_such_tensor_any_more_is_a_corrupt_checkpoint() -> None:
    blobs = CountingBlobs()
    before = first(stepping(blobs))
    following = replace(folding(state(before)), refolds=(refold(before),), inline=digests(REFS))

    error = stepping(blobs, fold=lambda reads: Made()).run(following, FRAMES).result.error

    assert error is not None
    assert (error.kind, "is nothing and not" in error.message) == ("corrupt_checkpoint", True)


@pytest.mark.parametrize("made", [{}, {"x": X}, {"x": X, "before": X, "more": X}])
def test_a_fold_makes_what_the_plan_derives(made: dict[str, torch.Tensor]) -> None:
    error = stepping(fold=lambda reads: Made(made)).run(folding(REFS, inline=digests(REFS)), FRAMES).result.error

    assert error is not None
    assert error.message.startswith(BrokenPromise.__name__)


def test_a_step_leaves_to_its_fold_what_the_plan_derives() -> None:
    both = executor(lambda reads: Made({**output(reads).tensors, "x": X}), fold=fold)

    error = both.run(folding(REFS, inline=digests(REFS)), FRAMES).result.error

    assert error is not None
    assert error.message.startswith(BrokenPromise.__name__)
    assert error.message.endswith(": x")


def test_a_model_without_the_fold_says_which() -> None:
    error = executor(output).run(folding(REFS, inline=digests(REFS)), FRAMES).result.error

    assert error is not None
    assert "step.fold" in error.message


# -- ranks ----------------------------------------------------------------------------------------------------------


def test_ranks_make_a_state_again_alike() -> None:
    blobs = CountingBlobs()
    before = first(stepping(blobs))
    following = replace(folding(state(before)), refolds=(refold(before),), inline=digests(REFS))
    ours, theirs = stepping(blobs), stepping(blobs, stores=False)
    with pool([theirs]) as followers:
        followers.ready()
        for asked, frames in ((following, FRAMES), (folding(state(before), snapshot=True), [])):
            followers.broadcast(asked, frames)
            answer = ours.run(asked, frames)
            assert answer.result.error is None
            followers.agree(answer)

    assert ours.resident.held() == theirs.resident.held()


def test_ranks_that_cannot_make_it_again_fail_alike() -> None:
    blobs = CountingBlobs()
    before = first(stepping(blobs))
    following = replace(folding(state(before)), refolds=(refold(before),), inline=digests(REFS))
    with pool([stepping(blobs, fold=other_fold, stores=False)]) as followers:
        followers.ready()
        followers.broadcast(following, FRAMES)
        answer = stepping(blobs, fold=other_fold).run(following, FRAMES)
        followers.agree(answer)

    assert answer.result.error is not None
