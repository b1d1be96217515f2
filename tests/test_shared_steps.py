"""Steps that ranks of real processes share, over gloo: the bits of one rank, and one end of a step for all of them."""

import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from msgspec.structs import replace

from cards.loop import Done, LoopContext
from cards.model import Model
from cards.request import GenerationRequest, resolve
from cards.wire import Goodbye, Release, Released, Shutdown, StepResult, TensorRef, UnitId, WorkPlan, WorkUnit
from ops.blobs import WorkerBlobs
from store.blobs import MemoryBlobs
from tests.parity import tiny, tiny_wan
from tests.parity.reference import family
from tests.parity.test_lora import first
from tests.pool import Pool, pool
from tests.processes import until
from tests.workers.units import sent
from workers.exchange import SOONER
from workers.execute import Executor
from workers.loaded import load_models

pytestmark = pytest.mark.slow

TIMEOUT_S = 6.0

REQUEST: dict[str, Any] = {"prompt": "a cat", "seed": 3, "steps": 2, "guidance": 4.0, "size": "64x64", "frames": 9}

WAN: dict[str, tuple[Callable[[], Path], str, dict[str, str]]] = {
    "wan": (tiny.wan, "float32", {}),
    "wan-bf16": (tiny.wan, "bfloat16", {}),
    "batched": (tiny.wan, "float32", {"cfg": "batched"}),
    "student": (tiny.wan, "float32", {"recipe": "dmd"}),
    "experts": (tiny_wan.experts, "float32", {}),
}


def model(name: str) -> Model:
    folder, precision, options = WAN[name]
    return Model(name=name, folder=str(folder()), precision=precision, options=options)  # type: ignore[arg-type]


@cache
def wan(name: str) -> Any:
    folder, precision, options = WAN[name]
    return family(folder(), precision, name, **options)


def denoise(name: str, number: int, **request: Any) -> tuple[WorkUnit, list[bytes]]:
    """A first step of denoising, of a job of its own."""
    card = wan(name).card
    fixed = {"steps": 3, "guidance": 1.0} if name == "student" else {}
    asked = resolve(GenerationRequest(model=name, **REQUEST | fixed | request), card, random.Random(0))
    generator = torch.Generator().manual_seed(number)
    texts = ("text",) if name == "student" else ("text", "negative")
    inputs = {text: torch.randn(1, 512, 32, generator=generator) for text in texts}
    refs, frames = sent(**inputs)
    loop = wan(name).loops[card.loops["denoise"].semantics]
    plan = loop.next(loop.init(LoopContext(card, asked, "denoise"), refs))
    assert not isinstance(plan, Done)
    return unit(plan, f"{name}-{number}", refs), frames


def unit(plan: WorkPlan, job: str, refs: Mapping[str, TensorRef], version: int = 1) -> WorkUnit:
    return WorkUnit(UnitId(job, 1, version, 1), plan, inline=tuple(ref.digest for ref in refs.values()))


def made(result: StepResult) -> Any:
    assert result.error is None, result.error
    return result.tensors, result.scalars


@pytest.fixture(scope="module")
def stop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stop") / "rank"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory, stop: Path) -> Iterator[Pool]:
    settings = {"families": ("tests.unlike_ranks",), "models": tuple(model(name) for name in WAN)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOP", str(stop))
        with pool(tmp_path_factory.mktemp("four"), "cfg=2,ulysses=2", rank_timeout_s=TIMEOUT_S, **settings) as running:
            yield running


def test_four_ranks_that_share_branches_and_tokens_make_the_bits_of_one(four: Pool) -> None:
    asked = [denoise(name, number) for number, name in enumerate(WAN)]
    asked += [
        denoise("wan", 10, guidance=1.0),
        denoise("wan", 11, size="32x32"),
    ]  # one branch, too few tokens
    alone = Executor(load_models({name: wan(name) for name in WAN}), WorkerBlobs(MemoryBlobs()))

    for one, frames in asked:
        assert made(four.run(one, frames)) == made(alone.run(one, frames).result)


def test_of_four_ranks_the_one_that_stops_in_an_exchange_is_named_in_seconds(four: Pool, stop: Path) -> None:
    stop.write_text("3")
    four.send(*denoise("wan", 20))

    reason = four.hear(Goodbye).reason
    assert f"rank 3 has gone, or exchanged no tensors for {TIMEOUT_S * SOONER:g} s" in reason
    assert four.rank(3).status() == psutil.STATUS_STOPPED


def count(job: str, step: int, x: torch.Tensor, prompt: str = "a count") -> tuple[WorkUnit, list[bytes]]:
    refs, frames = sent(x=x)
    scalars = {"seed": 7, "prompt": prompt, "guidance": 2.0}
    plan = WorkPlan(instance="toy", loop="count", kind="count", step=step, reads=refs, scalars=scalars)
    return unit(plan, job, refs, version=step + 1), frames


def test_an_abort_is_one_place_in_the_order_however_the_clocks_of_ranks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = tmp_path / "counted"
    counted.mkdir()
    monkeypatch.setenv("COUNTED", str(counted))
    monkeypatch.setenv("SKEWED", "yes")
    x = torch.ones(4, 4)
    with pool(tmp_path, "cfg=2", families=("tests.unlike_ranks",)) as two:
        assert two.run(*count("aborted", 0, x)).error is None
        for step in (1, 2, 3):
            two.send(*count("aborted", step, x, "a count far_sleep=0.5"))
        until(lambda: "far 1" in "".join(file.read_text() for file in counted.iterdir()), "the second step to begin")
        two.send(Release("aborted", 1))
        heard = [two.hear(StepResult).id.version]
        released = two.hear(Released)
        assert two.run(*count("another", 4, x)).error is None
        two.send(Shutdown())
        assert two.hear(Goodbye).clean

    assert heard == [2]
    assert [dropped.version for dropped in released.dropped] == [3, 4]
    lines = sorted(file.read_text().split("\n")[:-1] for file in counted.iterdir())
    assert lines == [[f"{branch} {step}" for step in (0, 1, 4)] for branch in ("far", "near")]


def test_a_lora_that_does_not_load_on_one_rank_ends_the_pool_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs, frames = sent(**{"lora/0": torch.frombuffer(bytearray(first()), dtype=torch.uint8)})
    ref, [data] = refs["lora/0"], frames
    plain, given = denoise("wan", 1)
    scalars = plain.plan.scalars | {"lora/0": 1.0}
    adapted = replace(
        plain,
        plan=replace(plain.plan, reads=plain.plan.reads | refs, scalars=scalars),
        inline=(*plain.inline, ref.digest),
    )
    monkeypatch.setenv("LOST", ref.digest)
    families = ("tests.unlike_ranks",)
    with pool(tmp_path, "ulysses=2", families=families, models=(model("wan"),)) as two:
        well = made(two.run(plain, given))
        two.send(replace(adapted, id=replace(adapted.id, version=2)), [*given, data])

        reason = two.hear(Goodbye).reason
    assert "rank 1 has ended command 2 by itself: failed with BadLora" in reason
    assert well == made(Executor(load_models({"wan": wan("wan")}), WorkerBlobs(MemoryBlobs())).run(plain, given).result)
