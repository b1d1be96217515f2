"""Observers of steps: what they see and say, and that nothing of them is there where none is asked for."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from cards import codec
from cards.errors import BadExtension
from cards.extensions.observer import NOTHING, Observed, Observer, Seen
from cards.extensions.observers import check, open_observers
from cards.family import Components, Made
from cards.wire import StepError, WorkPlan
from tests.workers.units import CountingBlobs, executor, sent, unit
from workers.execute import Executor
from workers.loaded import Loaded
from workers.observed import ObservedExecutor
from workers.observed import executor as built

X = torch.arange(6.0).reshape(2, 3)


class Halving(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.ReLU()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) / 2
        return x


def halve(components: Components, plan: WorkPlan, reads: Mapping[str, torch.Tensor]) -> Made:
    return Made({"y": components["model"](reads["x"])})


def poison(components: Components, plan: WorkPlan, reads: Mapping[str, torch.Tensor]) -> Made:
    return Made({"fine": reads["x"], "y": reads["x"] / reads["x"], "z": torch.log(reads["x"])})


def fail(components: Components, plan: WorkPlan, reads: Mapping[str, torch.Tensor]) -> Made:
    components["model"](reads["x"])
    raise ValueError("no")


def observed(*extensions: str, body: Any = halve, model: torch.nn.Module | None = None) -> Executor:
    loaded = Loaded({"model": model or Halving(), "unused": 1}, {"step": body})
    return built({"toy": loaded}, CountingBlobs(), extensions)


def run(runs: Executor, job: str = "j", x: torch.Tensor = X) -> Any:
    refs, frames = sent(x=x)
    return runs.run(unit(refs, job=job, inline=tuple(ref.digest for ref in refs.values())), frames).result


@contextmanager
def called_files() -> Iterator[set[str]]:
    """The files of all Python functions that are called meanwhile."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)


def test_without_extensions_nothing_of_them_is_run() -> None:
    runs = observed()

    with called_files() as files:
        result = run(runs)

    assert type(runs) is Executor
    assert not result.observed
    assert any(file.endswith("workers/execute.py") for file in files)
    assert not [file for file in files if "extensions" in Path(file).parts or file.endswith("observed.py")]


def test_observers_change_nothing(tmp_path: Path) -> None:
    plain = run(observed())

    result = run(observed("nan_watch", "profiler", "taps:model.blocks.0", f"record:{tmp_path}"))

    assert (result.tensors, result.scalars, result.error) == (plain.tensors, plain.scalars, None)


def test_a_step_that_makes_nan_or_inf_fails_with_the_tensor_named() -> None:
    runs = observed("nan_watch", body=poison)

    assert run(runs).error == StepError("nan", "NotFinite: step step 0: y holds 1 NaN and 0 Inf in 6 values")
    one = run(runs, x=torch.tensor([0.5, 2.0]))
    assert one.error is None


def test_whole_numbers_are_always_finite() -> None:
    runs = observed("nan_watch", body=lambda components, plan, reads: Made({"n": torch.arange(3)}))

    assert run(runs).error is None


def test_the_profiler_says_the_seconds_of_the_step_and_of_its_modules() -> None:
    seconds = run(observed("profiler")).observed

    assert set(seconds) == {"seconds/step", "seconds/model", "seconds/model.blocks"}
    assert 0 < seconds["seconds/model.blocks"] < seconds["seconds/model"] < seconds["seconds/step"]


def test_a_tap_sums_up_each_call_of_a_module_and_may_keep_it(tmp_path: Path) -> None:
    result = run(observed(f"taps:model.blocks.1@{tmp_path}"))

    assert result.observed == pytest.approx(
        {"mean/model.blocks.1#0": 1.25, "most/model.blocks.1#0": 2.5, "std/model.blocks.1#0": 0.8539125}
    )
    [file] = (tmp_path / "j").iterdir()
    assert torch.equal(codec.decode(file.read_bytes()), X / 2)


@pytest.mark.parametrize("body", [halve, fail])
def test_no_hook_stays_on_a_module(body: Any) -> None:
    model = Halving()

    run(observed("profiler", "taps:model.blocks.0", body=body, model=model))

    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


def test_a_body_that_raised_is_told_of_and_its_error_stays() -> None:
    told: list[Made | None] = []

    class Watching(Observer):
        def after_step(self, step: Seen, made: Made | None) -> Observed:
            told.append(made)
            return NOTHING

    runs = ObservedExecutor({"toy": Loaded({"model": Halving()}, {"step": fail})}, CountingBlobs(), [Watching()])

    assert run(runs).error == StepError("error", "ValueError: no")
    assert told == [None]


def test_the_aligner_says_what_differs_first_and_by_how_much(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(observed(f"record:{tmp_path}"), job="before")
    runs = observed(f"align:{tmp_path}/before")

    alike, other = run(runs, "alike"), run(runs, "other", X + 1)
    run(runs, "other", X + 2)

    assert alike.observed == {}
    assert other.observed == {"differs/y": 0.25}
    assert caplog.messages == [f"job other: y of step step 0 is the first that differs from {tmp_path}/before: by 0.25"]


def test_a_fold_is_seen_as_well() -> None:
    def body(reads: Mapping[str, torch.Tensor]) -> Made:
        return Made({"y": X})

    def fold(reads: Mapping[str, torch.Tensor]) -> Made:
        return Made({"z": reads["made/y"] / 0})

    plain = executor(body, fold=fold)
    runs = ObservedExecutor(plain._models, CountingBlobs(), open_observers(["nan_watch"]))
    plan = WorkPlan(instance="toy", loop="step", kind="step", step=0, derives=("z",))
    result = runs.run(replace(unit(), plan=plan), []).result

    assert result.error is not None
    assert "z holds 1 NaN and 5 Inf" in result.error.message


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("magic", "'magic' is no extension; there are: nan_watch, profiler, taps, record, align"),
        ("taps", "needs a module"),
        ("record:", "needs a folder"),
        ("align", "needs what was recorded"),
    ],
)
def test_what_is_no_extension_is_refused_before_a_worker_starts(entry: str, problem: str) -> None:
    with pytest.raises(BadExtension, match=problem):
        check([entry])


def test_the_aligner_needs_what_was_recorded(tmp_path: Path) -> None:
    with pytest.raises(BadExtension, match="no folder"):
        open_observers([f"align:{tmp_path}/nothing"])
