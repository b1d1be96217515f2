"""Which components are loaded, and when: by what steps take, by what there is room for, and by what people say."""

from collections.abc import Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from cards import checkpoint
from cards.errors import WeightsChanged
from cards.family import Components, Made, Reads, StepBody
from cards.lazy import Lazy
from cards.shapes.card import CARD
from cards.shapes.family import FAMILY, Shapes
from cards.wire import Heartbeat, Hello, Sleep, StepResult, UnitId, Wake, WorkPlan, WorkUnit
from engine.link import listen
from tests.parity import tiny
from tests.parity.reference import family
from tests.workers.test_ranks import pool
from tests.workers.test_worker_link import FRAMES, asked, hear, hear_but_beats
from tests.workers.test_worker_link import worker as linked
from tests.workers.units import CountingBlobs
from workers.caches import ADAPTER, BUDGETS, STEP, WEIGHTS, Caches
from workers.errors import WeightsTooLarge
from workers.execute import Executor
from workers.link import heartbeat
from workers.loaded import load_models
from workers.process import WorkerSettings, _executor

LOOPS = {"text_encoder": "encode_text", "transformer": "denoise", "vae": "decode_vae"}
"""Of each component a loop whose steps take it."""


class Counted(Shapes):
    """Components of ten bytes each, which are counted as they are loaded. A step takes that of its name."""

    def __init__(self, name: str = "shapes") -> None:
        super().__init__()
        self.card = replace(CARD, name=name)
        self.loaded: list[str] = []
        self.fails: set[str] = set()

    def load(self, device: str) -> Components:
        return Lazy(dict.fromkeys(CARD.components, 10) | {"tokenizer": 0}, self._load)

    def _load(self, name: str) -> torch.Tensor:
        if name in self.fails:
            raise OSError(f"cannot read {name}")
        self.loaded.append(name)
        return torch.full((2,), float(len(name)))

    def bodies(self) -> Mapping[str, StepBody]:
        return dict.fromkeys(LOOPS.values(), self._take)

    def _take(self, components: Components, plan: WorkPlan, reads: Reads) -> Made:
        taken = [components[name] for name in str(plan.scalars["takes"]).split()]
        return Made({"y": torch.cat(taken)})


def worker(*families: Counted, budget: int | None = None) -> Executor:
    models = load_models({family.card.name: family for family in families})
    return Executor(models, CountingBlobs(), caches=Caches({**BUDGETS, WEIGHTS: budget}))


def unit(takes: str, model: str = "shapes") -> WorkUnit:
    loop = LOOPS.get(takes.split()[0], "denoise")
    return WorkUnit(
        UnitId("j", 1, 1, 1), WorkPlan(instance=model, loop=loop, kind=loop, step=0, scalars={"takes": takes})
    )


def run(executor: Executor, takes: str, model: str = "shapes") -> Any:
    return executor.run(unit(takes, model), []).result


def test_nothing_is_loaded_before_a_step_takes_it() -> None:
    runs = worker(of := Counted())
    assert (of.loaded, runs.residency.resident()) == ([], ())

    first, second = run(runs, "vae"), run(runs, "vae")

    assert of.loaded == ["vae"]
    assert runs.residency.resident() == ("shapes/vae",)
    assert first.loading_s > 0.0 == second.loading_s
    assert first.tensors == second.tensors


def test_a_heartbeat_says_what_is_loaded_and_what_each_takes() -> None:
    runs = worker(Counted())
    before = heartbeat(runs, 0)
    run(runs, "vae")
    after = heartbeat(runs, 0)

    assert {name: (one.nbytes, one.load_s) for name, one in before.weights.items()} == {
        f"shapes/{name}": (10, None) for name in CARD.components
    }
    assert (before.resident, after.resident) == ((), ("shapes/vae",))
    assert after.weights["shapes/vae"].load_s is not None
    assert after.caches[WEIGHTS].nbytes == 10


def test_there_is_room_for_so_many_and_what_was_used_longest_ago_goes() -> None:
    runs = worker(of := Counted(), budget=20)
    for name in ("text_encoder", "transformer", "text_encoder", "vae"):
        run(runs, name)

    assert of.loaded == ["text_encoder", "transformer", "vae"]
    assert runs.residency.resident() == ("shapes/text_encoder", "shapes/vae")


def test_what_is_queued_keeps_its_components_as_long_as_others_can_go() -> None:
    runs = worker(Counted(), budget=20)
    runs.residency.queued = lambda: [unit("text_encoder").plan]
    for name in ("text_encoder", "transformer", "vae"):
        run(runs, name)
    assert runs.residency.resident() == ("shapes/text_encoder", "shapes/vae")

    runs.residency.queued = lambda: [unit("text_encoder").plan, unit("vae").plan]
    run(runs, "transformer")
    assert "shapes/transformer" in runs.residency.resident()
    assert len(runs.residency.resident()) == 2


def test_two_models_take_turns_in_room_for_one() -> None:
    one, other = Counted("one"), Counted("other")
    runs = worker(one, other, budget=10)

    made = [run(runs, "transformer", model).tensors for model in ("one", "other", "one")]

    assert (one.loaded, other.loaded) == (["transformer"] * 2, ["transformer"])
    assert runs.residency.resident() == ("one/transformer",)
    assert made[0] == made[2]


class Crowded(Counted):
    """On a device with memory for two components, whatever the budget."""

    def load(self, device: str) -> Components:
        self.there = Lazy(dict.fromkeys(CARD.components, 10), self._load)
        return self.there

    def _load(self, name: str) -> torch.Tensor:
        if len(self.there._loaded) == 2:
            raise MemoryError(f"no room for {name}")
        return super()._load(name)


def test_components_that_a_step_does_not_take_go_where_it_runs_out_of_memory() -> None:
    runs = worker(of := Crowded())
    for name in ("text_encoder", "transformer"):
        run(runs, name)

    assert run(runs, "transformer vae").error is None

    assert of.loaded == ["text_encoder", "transformer", "vae"], "what it takes stays"
    assert runs.residency.resident() == ("shapes/transformer", "shapes/vae")


def test_components_have_the_memory_of_the_worker_where_nothing_else_is_said() -> None:
    of_two = [
        WorkerSettings(connect="", memory_bytes=20),
        WorkerSettings(connect="", memory_bytes=20, weights_bytes=10),
    ]

    budgets = [_executor(settings, {}, CountingBlobs(), 0, "cpu").caches.budget(WEIGHTS) for settings in of_two]

    assert budgets == [20, 10]


def test_what_one_step_takes_is_there_together_whatever_the_room() -> None:
    runs = worker(Counted(), budget=10)

    assert run(runs, "transformer vae").error is None
    assert runs.caches.uses()[WEIGHTS].nbytes == 10  # and then one goes


def test_a_component_that_would_never_stay_is_refused_by_name() -> None:
    with pytest.raises(WeightsTooLarge, match=r"weights_bytes: 9 is less than shapes/.*, which is 10: set it to that"):
        worker(Counted(), budget=9).residency.check(9)


def test_what_sleeps_is_unloaded_and_the_step_that_needs_it_wakes_it() -> None:
    runs = worker(of := Counted())
    awake = run(runs, "transformer vae")

    runs.residency.obey(Sleep(("shapes/transformer", "shapes/text_encoder", "another/vae")))
    assert runs.residency.resident() == ("shapes/vae",)
    woken = run(runs, "transformer vae")

    assert woken.tensors == awake.tensors
    assert woken.loading_s > 0
    assert of.loaded == ["transformer", "vae", "transformer"]


def test_what_is_woken_is_loaded_before_a_step_needs_it() -> None:
    runs = worker(of := Counted())

    runs.residency.obey(Wake(("shapes/vae", "shapes/tokenizer", "another/vae")))

    assert of.loaded == ["vae"]
    assert run(runs, "vae").loading_s == 0.0


def test_what_is_woken_together_takes_the_room_of_others_and_of_none_that_is_woken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = worker(Counted(), budget=20)
    run(runs, "text_encoder")

    runs.residency.obey(Wake(("shapes/transformer", "shapes/vae", "shapes/text_encoder")))

    assert runs.residency.resident() == ("shapes/transformer", "shapes/vae")
    assert "there is no room to wake shapes/text_encoder" in caplog.text


def test_a_wake_that_fails_half_way_leaves_whole_components_and_no_others() -> None:
    runs = worker(of := Counted())
    of.fails = {"vae"}

    runs.residency.obey(Wake(("shapes/transformer", "shapes/vae")))
    assert runs.residency.resident() == ("shapes/transformer",)
    failed = run(runs, "vae")
    assert (failed.error.kind, failed.error.message) == ("error", "OSError: cannot read vae")

    of.fails.clear()
    assert run(runs, "vae").error is None


def test_a_step_whose_weights_have_changed_is_no_answer_but_ends_the_process() -> None:
    """Which has said that it has others: the next one says which it has."""

    class Changed(Counted):
        def _load(self, name: str) -> torch.Tensor:
            raise WeightsChanged(Path(name))

    with pytest.raises(WeightsChanged):
        run(worker(Changed()), "vae")


def test_other_ranks_sleep_and_wake_with_the_first() -> None:
    first, other = worker(Counted()), worker(Counted())
    with pool([other]) as followers:
        followers.ready()
        for told, resident in ((Wake(("shapes/vae",)), ("shapes/vae",)), (Sleep(("shapes/vae",)), ())):
            followers.broadcast(told)
            first.residency.obey(told)
            followers.broadcast(unit("transformer"))
            followers.agree(first.run(unit("transformer"), []))
            assert {*other.residency.resident()} == {*first.residency.resident()} == {*resident, "shapes/transformer"}


async def test_a_worker_obeys_between_two_steps_and_goes_on(tmp_path: Path) -> None:
    async with listen(f"ipc://{tmp_path}/link") as engine, linked(f"ipc://{tmp_path}/link") as there:
        await engine.receive()
        for told in (Sleep(("toy/model",)), Wake(("toy/model",))):
            await engine.send("w", told)
        there.steps.gate.set()
        await engine.send("w", asked("j"), FRAMES)

        [result] = await hear_but_beats(engine, 1)
        assert isinstance(result, StepResult)
        assert result.error is None


async def test_a_worker_says_what_is_loaded_before_it_answers_the_step_that_loaded_it(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/link"
    async with listen(address) as engine, linked(address, heartbeat_s=3600.0, runs=worker(Counted(), budget=10)):
        await hear(engine, Hello)
        await engine.send("w", unit("vae"))
        heard = [(await engine.receive()).message]
        while not isinstance(heard[-1], StepResult):
            heard.append((await engine.receive()).message)

    beat = heard[-2]
    assert isinstance(beat, Heartbeat)
    assert (beat.resident, beat.weights_bytes) == (("shapes/vae",), 10)


def test_the_loading_of_a_step_that_fails_is_not_the_next_ones() -> None:
    runs = worker(of := Counted())
    of.fails = {"vae"}
    assert run(runs, "transformer vae").error is not None

    of.fails.clear()
    assert run(runs, "transformer").loading_s == 0.0


def test_adapters_leave_with_their_module() -> None:
    runs = worker(Counted())
    run(runs, "transformer")
    gone: list[str] = []
    keeper = runs._components(unit("transformer").plan)["adapters"]
    for component in ("transformer", "vae"):
        keeper.keep(component, "file", 4, lambda component=component: gone.append(component))
    runs.caches.release(STEP)

    runs.residency.obey(Sleep(("shapes/transformer",)))

    assert gone == ["transformer"]
    assert runs.caches.uses()[ADAPTER].entries == 1
    assert not keeper.uses("transformer", "file")


def test_the_bits_of_a_module_are_those_it_had_before_it_slept() -> None:
    modules = FAMILY.load("cpu")
    assert isinstance(modules, Lazy)
    before = {name: one.clone() for name, one in modules["text_encoder"].state_dict().items()}

    modules.unload("text_encoder")
    after = modules["text_encoder"].state_dict()

    assert all(torch.equal(before[name], after[name]) for name in before)


def test_files_that_changed_meanwhile_are_not_loaded_in_place_of_those_that_were_said(tmp_path: Path) -> None:
    folder = tmp_path / "wan"
    copytree(tiny.wan(), folder)
    components = family(folder, "float32").load("cpu")
    assert isinstance(components, Lazy)
    assert components["vae"] is components["vae"]
    [weights] = [file for file in (folder / "vae").iterdir() if file.suffix == ".safetensors"]
    components.unload("vae")

    weights.write_bytes(weights.read_bytes())  # other bytes or not: who knows without reading them
    with pytest.raises(WeightsChanged, match="vae: its files have changed since this process began"):
        components["vae"]
    assert components["transformer"] is not None


def test_the_components_of_a_checkpoint_have_digests_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "wan"
    copytree(tiny.wan(), folder)
    before = family(folder, "float32").component_digests()  # type: ignore[attr-defined]

    config = folder / "vae" / "config.json"
    config.write_text(config.read_text() + "\n")
    after = family(folder, "float32").component_digests()  # type: ignore[attr-defined]

    assert {name for name in before if before[name] != after[name]} == {"vae"}
    assert before.keys() == checkpoint.read(folder).parts.keys()
