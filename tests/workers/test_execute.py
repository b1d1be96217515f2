"""One unit on a device: what stays resident, what leaves, and how it fails."""

from collections.abc import Mapping

import pytest
import torch
from msgspec.structs import replace

from cards import codec
from cards.branches import COMPONENT, in_order
from cards.family import Artifact, Made
from cards.parallel import ParallelPlan
from cards.wire import INLINE_LIMIT, StepError, UnitId, promised
from tests.workers.units import CountingBlobs, digests, executor, sent, unit
from workers.errors import BlobLost, BlobsUnavailable
from workers.execute import Answer
from workers.loaded import load_models
from workers.resident import Held, Resident

X = torch.arange(6.0).reshape(2, 3)


def test_a_step_reads_what_came_with_its_unit() -> None:
    runs = executor(lambda reads: Made({"y": reads["x"] + 1}, {"sum": 3.0}))
    refs, frames = sent(x=X)

    answer = runs.run(unit(refs, inline=digests(refs)), frames)

    assert answer.result.error is None
    assert answer.result.scalars == {"sum": 3.0}
    [data] = answer.frames
    assert torch.equal(codec.decode(data), X + 1)
    assert answer.result.inline == (answer.result.tensors["y"].digest,) == (codec.digest(data),)


def test_an_unchanged_tensor_costs_nothing() -> None:
    blobs = CountingBlobs()
    runs = executor(lambda reads: Made({"text": reads["x"], "y": reads["x"] * 2}), blobs)
    refs, frames = sent(x=torch.rand(INLINE_LIMIT))

    answer = runs.run(unit(refs, inline=digests(refs)), frames)

    assert answer.result.tensors["text"] == refs["x"]
    assert blobs.puts == [answer.result.tensors["y"].digest]
    assert runs.resident.held().tensors == 2


def test_a_small_tensor_travels_and_a_large_one_is_stored() -> None:
    blobs = CountingBlobs()
    over = INLINE_LIMIT - len(codec.encode(torch.zeros(0, dtype=torch.uint8))[1])
    made = {f"{n}": torch.ones(n, dtype=torch.uint8) for n in (1, over - 64, INLINE_LIMIT, INLINE_LIMIT + 1)}
    runs = executor(lambda reads: Made(made), blobs)

    answer = runs.run(unit(), [])

    small, large = digests(answer.result.tensors)[:2], digests(answer.result.tensors)[2:]
    assert (answer.result.inline, tuple(blobs.puts)) == (small, large)
    assert all(len(data) <= INLINE_LIMIT for data in answer.frames)
    assert all(len(blobs.get(digest)) > INLINE_LIMIT for digest in large)


def test_all_that_a_step_stores_is_stored_at_once() -> None:
    blobs = CountingBlobs()
    clip = Artifact("b.bin", "video/mp4", bytes(INLINE_LIMIT + 1))
    made = Made({"x": torch.ones(INLINE_LIMIT), "y": torch.zeros(INLINE_LIMIT)}, artifacts=(clip,))

    executor(lambda reads: made, blobs).run(unit(), [])

    assert (blobs.calls, len(blobs.puts)) == (1, 3)


def test_artifacts_leave_as_tensors_do() -> None:
    blobs = CountingBlobs()
    files = (Artifact("a.txt", "text/plain", b"a"), Artifact("b.bin", "video/mp4", bytes(INLINE_LIMIT + 1)))
    runs = executor(lambda reads: Made(artifacts=files), blobs)

    result = runs.run(unit(), []).result

    assert [(ref.name, ref.media_type, ref.nbytes) for ref in result.artifacts] == [
        ("a.txt", "text/plain", 1),
        ("b.bin", "video/mp4", INLINE_LIMIT + 1),
    ]
    assert (result.inline, blobs.puts) == ((result.artifacts[0].digest,), [result.artifacts[1].digest])
    assert runs.resident.held() == Held(0, 0)


def test_the_same_bytes_twice_travel_once() -> None:
    answer = executor(lambda reads: Made({"a": X, "b": X.clone()})).run(unit(), [])

    assert len(answer.frames) == len(answer.result.inline) == 1
    assert answer.result.tensors["a"] == answer.result.tensors["b"]


def test_a_rank_that_stores_nothing_answers_the_same() -> None:
    blobs, body = CountingBlobs(), lambda reads: Made({"small": X, "large": torch.ones(INLINE_LIMIT)})

    first = executor(body).run(unit(), []).result
    other = executor(body, blobs, stores=False).run(unit(), []).result

    assert other.tensors == first.tensors
    assert blobs.puts == []


@pytest.mark.parametrize("dropped_before", range(4))
def test_an_executor_answers_the_same_after_its_state_was_dropped_and_supplied_again(dropped_before: int) -> None:
    def run(drop: int | None) -> list[Answer]:
        runs, answers = executor(lambda reads: Made({"x": (reads["x"] @ reads["x"]).t() / 9})), []
        refs, frames = sent(x=torch.rand(8, 8, generator=torch.Generator().manual_seed(1)))
        for step in range(4):
            fresh = step in (0, drop)
            if fresh:
                runs.resident.release("j")
            keep = digests(refs)
            answers.append(runs.run(unit(refs, inline=keep if fresh else (), keep=keep), frames if fresh else []))
            refs, frames = answers[-1].result.tensors, list(answers[-1].frames)
        return answers

    before, after = ([(a.result.tensors, a.frames) for a in run(drop)] for drop in (None, dropped_before))

    assert after == before


def test_what_goes_on_has_the_layout_that_a_resume_would_load() -> None:
    seen: list[tuple[int, ...]] = []

    def body(reads: Mapping[str, torch.Tensor]) -> Made:
        seen.append(reads["x"].stride())
        return Made({"x": reads["x"][1:].expand(3, 3)})

    runs = executor(body)
    refs, frames = sent(x=torch.rand(2, 3))
    answer = runs.run(unit(refs, inline=digests(refs)), frames)
    runs.run(unit(answer.result.tensors, keep=digests(answer.result.tensors)), [])

    assert seen == [(3, 1), codec.decode(answer.frames[0]).stride()]
    assert runs.resident.get("j", answer.result.tensors["x"]).storage_offset() == 0


# -- promises ---------------------------------------------------------------------------------------------------


def test_a_unit_reads_what_the_one_before_it_promised() -> None:
    runs = executor(lambda reads: Made({"x": reads["x"] + 1}))
    refs, frames = sent(x=X)
    first = unit(refs, inline=digests(refs))
    promise = promised(first.id, "x")
    second = replace(unit({"x": promise}, keep=(promise.digest,)), id=replace(first.id, version=2))

    runs.run(first, frames)
    answer = runs.run(second, [])

    assert torch.equal(codec.decode(answer.frames[0]), X + 2)


def test_a_promise_that_was_not_kept_fails_the_unit_that_counts_on_it() -> None:
    promise = promised(unit().id, "x")

    error = executor(lambda reads: Made()).run(unit({"x": promise}, keep=(promise.digest,)), []).result.error

    assert error is not None
    assert promise.digest in error.message


# -- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no"), "error"),
        (KeyError("missing"), "error"),
        (AssertionError(), "error"),
        (MemoryError("full"), "oom"),
        (torch.OutOfMemoryError("full"), "oom"),
        (BlobLost("d"), "corrupt_checkpoint"),
        (BlobsUnavailable("disk full"), "store_trouble"),
    ],
)
def test_a_step_that_raises_is_an_answer(error: Exception, kind: str) -> None:
    def fail(reads: Mapping[str, torch.Tensor]) -> Made:
        raise error

    answer = executor(fail).run(unit(), [])

    assert answer.result.error == StepError(kind, f"{type(error).__name__}: {error}")
    assert (answer.result.tensors, answer.result.inline, answer.frames) == ({}, (), ())


def test_a_step_that_makes_nan_fails_with_the_tensor_named_and_one_that_passes_on_or_makes_inf_does_not() -> None:
    refs, frames = sent(x=torch.tensor([0.0, float("nan")]))
    asked = unit(refs, inline=digests(refs))

    failed = executor(lambda reads: Made({"x": reads["x"], "y": reads["x"] / 0})).run(asked, frames)
    passed = executor(lambda reads: Made({"x": reads["x"], "mask": torch.zeros(2).log()})).run(asked, frames)

    assert failed.result.error == StepError("nan", "NotFinite: step step 0: y holds 2 NaN and 0 Inf in 2 values")
    assert passed.result.error is None


def test_a_fold_that_makes_nan_fails_its_step() -> None:
    runs = executor(lambda reads: Made({"y": torch.zeros(2)}), fold=lambda reads: Made({"z": reads["made/y"] / 0}))
    asked = unit()

    error = runs.run(replace(asked, plan=replace(asked.plan, derives=("z",))), []).result.error

    assert error is not None
    assert error.kind == "nan"


def test_what_breaks_the_process_is_no_answer() -> None:
    class PowerCut(BaseException):
        pass

    def fail(reads: Mapping[str, torch.Tensor]) -> Made:
        raise PowerCut

    with pytest.raises(PowerCut):
        executor(fail).run(unit(), [])


def test_a_tensor_that_is_nowhere_is_a_corrupt_checkpoint() -> None:
    refs, _ = sent(x=X)

    error = executor(lambda reads: Made()).run(unit(refs), []).result.error

    assert error is not None
    assert (error.kind, refs["x"].digest in error.message) == ("corrupt_checkpoint", True)


def test_an_inline_blob_that_cannot_be_read_is_an_answer() -> None:
    refs, _ = sent(x=X)

    error = executor(lambda reads: Made()).run(unit(refs, inline=digests(refs)), [b"damaged"]).result.error

    assert error is not None
    assert error.message.startswith("ValueError: not a tensor blob")


@pytest.mark.parametrize("plan", [{"instance": "nobody"}, {"kind": "nothing"}])
def test_a_plan_that_no_code_runs_is_an_answer(plan: dict[str, str]) -> None:
    asked = unit()
    error = executor(lambda reads: Made()).run(replace(asked, plan=replace(asked.plan, **plan)), []).result.error

    assert error is not None
    assert next(iter(plan.values())) in error.message


def test_the_step_after_a_failed_one_is_unharmed() -> None:
    def sometimes(reads: Mapping[str, torch.Tensor]) -> Made:
        if not reads:
            raise ValueError
        return Made({"y": reads["x"]})

    runs = executor(sometimes)
    refs, frames = sent(x=X)

    assert runs.run(unit(job="other"), []).result.error is not None
    assert runs.run(unit(refs, inline=digests(refs)), frames).result.error is None


# -- resident tensors -------------------------------------------------------------------------------------------


def test_a_job_holds_what_it_still_refers_to() -> None:
    resident = Resident(CountingBlobs())
    refs, frames = sent(x=X, y=X + 1, z=X + 2)
    x, y, z = digests(refs)
    resident.admit("j", [], dict(zip((x, y), frames, strict=False)))

    resident.admit("j", [y], {z: frames[2]})

    assert resident.held() == Held(2, 2 * X.nbytes)
    assert torch.equal(resident.get("j", refs["y"]), X + 1)
    with pytest.raises(BlobLost):
        resident.get("j", refs["x"])


def test_a_unit_of_a_lost_epoch_that_comes_late_is_not_run_and_takes_nothing_away() -> None:
    runs = executor(lambda reads: Made({"y": reads["x"] + 1}))
    refs, [data] = sent(x=X)
    x = refs["x"].digest
    now = replace(unit(refs, inline=(x,), keep=(x,)), id=UnitId("j", 2, 5, 2))
    late = replace(unit(refs), id=UnitId("j", 1, 4, 1))
    following = replace(unit(refs, keep=(x,)), id=UnitId("j", 2, 6, 2))

    assert runs.run(now, [data]).result.error is None
    refused = runs.run(late, []).result

    assert refused.error is not None
    assert "epoch 1 came behind" in refused.error.message
    assert runs.run(following, []).result.error is None


def test_a_job_holds_nothing_of_another() -> None:
    blobs = CountingBlobs()
    resident = Resident(blobs)
    refs, [data] = sent(x=X)
    blobs.put_named({refs["x"].digest: data})
    resident.admit("first", [], {refs["x"].digest: data})
    resident.admit("second", [refs["x"].digest], {})

    resident.get("second", refs["x"])

    assert blobs.gets == [refs["x"].digest]
    resident.release("first")
    assert resident.held() == Held(1, X.nbytes)


def test_a_stored_tensor_is_read_once() -> None:
    blobs = CountingBlobs()
    refs, [data] = sent(x=X)
    blobs.put_named({refs["x"].digest: data})
    resident = Resident(blobs)

    assert resident.get("j", refs["x"]) is resident.get("j", refs["x"])
    assert len(blobs.gets) == 1


def test_a_release_that_comes_late_leaves_what_the_new_owners_units_hold() -> None:
    resident = Resident(CountingBlobs())
    refs, frames = sent(x=X)
    resident.follow("j", 2)
    resident.admit("j", [], {refs["x"].digest: frames[0]})

    resident.release("j", 1)
    assert resident.held() == Held(1, X.nbytes)
    resident.release("j", 2)
    assert resident.held() == Held(0, 0)


def test_nothing_is_held_after_release_and_clear() -> None:
    resident = Resident(CountingBlobs())
    refs, frames = sent(x=X)
    for job in ("a", "b", "c"):
        resident.admit(job, [], {refs["x"].digest: frames[0]})
    assert resident.held() == Held(3, 3 * X.nbytes)

    resident.release("a")
    resident.release("nobody")
    assert resident.held().tensors == 2

    resident.clear()
    assert resident.held() == Held(0, 0)


def test_models_that_no_rank_shares_are_run_in_a_plan_as_without_one() -> None:
    from tests import branching, toy

    families = {"toy": toy.FAMILY, "branching": branching.FAMILY}

    def shared(degrees: dict[str, int]) -> list[str]:
        models = load_models(families, "cpu", ParallelPlan(degrees), in_order)
        return [name for name, model in models.items() if COMPONENT in model.beside]

    assert shared({"cfg": 2}) == ["branching"]
    assert shared({"cfg": 1, "ulysses": 2}) == []


def test_a_model_is_loaded_with_its_bodies() -> None:
    from tests.toy import FAMILY

    models = load_models({"toy": FAMILY})

    assert models["toy"].bodies.keys() == {"prepare", "count", "finish"}
    assert models["toy"].components.keys() == {"counter"}
