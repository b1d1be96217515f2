"""The optional tier of compiled blocks: it is eager that is right, and the engine knows which bits it gets."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cards import fingerprint
from cards.family import Components, Made, Reads, StepBody
from cards.invariant import row_by_row
from cards.lazy import Lazy
from cards.shapes.card import CARD
from cards.shapes.family import Shapes
from cards.wire import Hello, StepResult, UnitId, WorkPlan, WorkUnit
from engine.link import listen
from ops.errors import BadSettings
from ops.settings import read
from tests.workers.test_worker_link import FRAMES, asked, hear, hear_but_beats, worker
from tests.workers.units import CountingBlobs
from workers.compiled import Tier
from workers.execute import Executor
from workers.loaded import load_models


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Transformer(nn.Module):
    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Hungry(Block):
    """Wants more memory for seven rows than there is."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.empty(1 << 46) if len(x) == 7 else super().forward(x)


class Blocks(Shapes):
    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        self._block = block

    def load(self, device: str) -> Components:
        def load(name: str) -> nn.Module:
            return Transformer(self._block).eval().requires_grad_(False)

        return Lazy(dict.fromkeys(CARD.components, 4), load)

    def bodies(self) -> Mapping[str, StepBody]:
        return {"denoise": self._denoise}

    def _denoise(self, components: Components, plan: WorkPlan, reads: Reads) -> Made:
        x = torch.ones(int(plan.scalars["rows"]), int(plan.scalars["width"]))
        return Made({"y": components[str(plan.scalars["takes"])](x)})


class Backend:
    """Of dynamo: runs what it is given as it is, and counts. Or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.compiled = 0
        self._error = error

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.compiled += 1
        if self._error is not None:
            raise self._error
        forward: Callable[..., Any] = graph.forward
        return forward


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What dynamo keeps is of the process."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    torch._dynamo.callback.callback_handler.clear()


def executor(backend: Any = None, block: type[Block] = Block) -> Executor:
    runs = Executor(load_models({"shapes": Blocks(block)}), CountingBlobs())
    if backend is not None:
        runs.compile(Tier("eager bits", runs.residency.spent, backend))
    return runs


def run(runs: Executor, rows: int = 3, takes: str = "transformer", width: int = 4) -> StepResult:
    scalars = {"rows": rows, "takes": takes, "width": width}
    plan = WorkPlan(instance="shapes", loop="denoise", kind="denoise", step=0, scalars=scalars)
    return runs.run(WorkUnit(UnitId("j", 1, 1, 1), plan), []).result


def test_blocks_are_compiled_once_for_each_shape_and_their_time_is_no_steps() -> None:
    runs, backend = executor(counting := Backend()), counting

    first = run(runs)
    once = backend.compiled
    again = run(runs)
    assert once > 0
    assert backend.compiled == once
    run(runs, rows=5)

    assert backend.compiled == 2 * once
    assert first.tensors == again.tensors == run(executor()).tensors  # this backend changes no bits
    assert first.loading_s > first.seconds
    assert again.loading_s == 0.0


@pytest.mark.parametrize("takes", ["text_encoder", "vae"])
def test_what_is_no_transformer_stays_eager(takes: str) -> None:
    run(executor(backend := Backend()), takes=takes)

    assert backend.compiled == 0


def test_a_module_that_goes_row_by_row_stays_eager() -> None:
    module = Transformer()
    row_by_row(module, ["blocks.0.linear"])

    Tier("", lambda seconds: None, Backend()).compile("wan/transformer", module)

    assert all(block.forward.__func__ is Block.forward for block in module.blocks)


def test_a_step_whose_blocks_do_not_compile_is_run_again_without_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    runs = executor(backend := Backend(RuntimeError("no compiler here")))

    first, second = run(runs), run(runs, rows=5)

    assert first.error is None
    assert (first.tensors, second.tensors) == (run(executor()).tensors, run(executor(), rows=5).tensors)
    assert backend.compiled == 1
    assert "compiling failed, all goes on without" in caplog.text
    assert runs.tier is not None
    assert "no compiler here" in runs.tier.failed


@pytest.mark.parametrize(("step", "kind"), [({"rows": 7}, "oom"), ({"width": 5}, "error")])
def test_a_step_that_fails_in_eager_kernels_too_fails_alone(step: dict[str, int], kind: str) -> None:
    runs = executor(Backend(), Hungry)
    before = run(runs)

    failed = run(runs, **step)

    assert failed.error is not None
    assert failed.error.kind == kind
    assert runs.tier is not None
    assert not runs.tier.failed
    assert run(runs).tensors == before.tensors


async def test_the_engine_hears_which_bits_a_worker_makes_from_now_on(tmp_path: Path) -> None:
    async with listen(f"ipc://{tmp_path}/link") as engine, worker(f"ipc://{tmp_path}/link") as there:
        await hear(engine, Hello)
        there.executor.tier = SimpleNamespace(failed="no compiler", eager="eager bits")  # type: ignore[assignment]
        there.steps.gate.set()

        await engine.send("w", asked("j"), FRAMES)
        [hello] = await hear_but_beats(engine, 1)
        assert isinstance(hello, Hello)
        assert hello.fingerprint == "eager bits"

        await engine.send("w", asked("j"), FRAMES)
        [result] = await hear_but_beats(engine, 1)
        assert isinstance(result, StepResult)
        assert result.error is None


def test_compiled_bits_are_other_numerics_for_each_number_of_threads() -> None:
    lines = {fingerprint.numerics(), fingerprint.numerics(compiled_for=1), fingerprint.numerics(compiled_for=2)}

    assert len(lines) == 3
    assert "compiled" not in fingerprint.numerics()


def test_compiling_is_for_one_rank() -> None:
    assert read({"compile": "true"}, {}).compile
    with pytest.raises(BadSettings, match="compile: is for 1 rank and there are 2"):
        read({"compile": "true", "ranks": 2}, {})
