"""Steps of different jobs in one forward: the bits of each job alone, for every card."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import safetensors.torch
from msgspec import Struct

from cards.counted import Counted
from cards.family import Family
from cards.given import Given, picture
from cards.lora import MOST
from cards.shapes.family import FAMILY as SHAPES
from tests.parity import every_card, test_lora, tiny, tiny_flux2, tiny_ltx2, tiny_wan
from tests.parity.courses import Course, Place, Steps, in_batches, one_by_one, turn
from tests.parity.reference import family
from tests.parity.sharing import Counting, Unmeasured
from tests.parity.test_every_card import StepCache
from workers.loaded import Loaded, load_models
from workers.sharing import Sharing

PRECISIONS = ("float32", "bfloat16")
CLIP = {"size": "64x64", "frames": 5}


class Case(Struct, frozen=True):
    """A card, and what its jobs ask for beside what is their own. `last` is the node up to which they run."""

    opened: Callable[[str], Family]
    asked: Mapping[str, Any]
    guided: bool = True
    steps: bool = True
    last: str = "denoise"
    jobs: int = 4
    image: bool = False


CASES: dict[str, Case] = {
    "shapes": Case(lambda precision: SHAPES, {"preview_every": 2}, jobs=3),
    "wan": Case(lambda precision: family(tiny.wan(), precision), CLIP),
    "wan, both prompts together": Case(lambda precision: family(tiny.wan(), precision, cfg="batched"), CLIP),
    "i2v": Case(lambda precision: family(tiny_wan.from_image(), precision), CLIP, image=True),
    "a14b": Case(lambda precision: family(tiny_wan.experts("euler"), precision), CLIP),
    "student": Case(lambda precision: family(tiny.wan(), precision, recipe="dmd"), CLIP, guided=False, steps=False),
    "flux2": Case(lambda precision: family(tiny_flux2.flux2(), precision), {"size": "48x32"}, jobs=3),
    # of LTX-2 as many tokens as leave no odd elements in its attention's gates: its tiny heads are two
    "ltx2": Case(
        lambda precision: family(tiny_ltx2.ltx2("2.3"), precision),
        {"size": "256x128", "frames": 169},
        guided=False,
        steps=False,
        last="refine",
        jobs=3,
    ),
    "ltx2, guided": Case(
        lambda precision: family(tiny_ltx2.ltx2("2.3"), precision, recipe="guided"),
        {"size": "256x128", "frames": 169},
        jobs=3,
    ),
}

RUNS = [("shapes", "float32"), *((name, precision) for name in CASES if name != "shapes" for precision in PRECISIONS)]
"""The modules of shapes have one precision."""

JOBS: tuple[dict[str, Any], ...] = (
    {"prompt": "a red cat", "seed": 3, "steps": 4, "guidance": 4.0, "negative_prompt": "blurry"},
    {"prompt": "a dog", "seed": 4, "steps": 3, "guidance": 1.0},
    {"prompt": "two green birds in the rain", "seed": 5, "steps": 5, "guidance": 2.0},
    {"prompt": "rain", "seed": 6, "steps": 2, "guidance": 4.0, "negative_prompt": "a red cat"},
)
"""They come one after the other, end at other times, and one has a single branch."""


@cache
def models(name: str, precision: str) -> tuple[Family, dict[str, Loaded]]:
    opened = CASES[name].opened(precision)
    return opened, load_models({opened.card.name: opened})


def given(name: str) -> dict[str, Given]:
    return {"image": picture("image", every_card.png())} if CASES[name].image else {}


def courses(name: str, precision: str) -> list[Course]:
    case, (opened, _) = CASES[name], models(name, precision)
    left_out = {field for field, there in (("guidance", case.guided), ("steps", case.steps)) if not there}
    asked = [{key: value for key, value in job.items() if key not in left_out} for job in JOBS[: case.jobs]]
    return [
        Course(f"job-{number}", opened, {**case.asked, **one}, given(name), case.last)
        for number, one in enumerate(asked)
    ]


def place(name: str, precision: str, sharing: Sharing | None = None) -> Place:
    return Place(models(name, precision)[1], [*given(name).values()], sharing)


@cache
def alone(name: str, precision: str) -> list[Steps]:
    sharing = Counting()
    made = one_by_one(place(name, precision, sharing), courses(name, precision))
    assert not sharing.calls
    return made


def in_known_batches(name: str, precision: str, sharing: Sharing) -> list[Steps]:
    """In batches of forwards that have met before: what they make is what their shared calls make."""
    in_batches(place(name, precision, sharing), courses(name, precision))
    return in_batches(place(name, precision, sharing), courses(name, precision))


@pytest.mark.parametrize(("name", "precision"), RUNS)
def test_jobs_that_share_forwards_make_the_bits_of_each_alone(
    name: str, precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert in_known_batches(name, precision, sharing := Counting()) == alone(name, precision)
    assert max(sharing.calls) >= 3
    assert "keyframe.workers" not in {record.name for record in caplog.records}, "some were evaluated one by one"


@pytest.mark.parametrize("name", ["wan", "i2v", "a14b", "student", "flux2", "ltx2", "ltx2, guided"])
def test_where_no_module_goes_part_by_part_they_do_not(name: str) -> None:
    """The negative control. Those of shapes are batch invariant, and with both prompts together they go row by row."""
    assert in_known_batches(name, "float32", Unmeasured()) != alone(name, "float32")


@pytest.mark.parametrize("name", ["shapes", "wan", "a14b", "student", "flux2"])
def test_a_cache_on_a_module_parts_them(name: str) -> None:
    """The other negative control: a job for which the cache is new makes the same each time."""
    opened, loaded = models(name, "float32")
    components = loaded[opened.card.name].components
    transformers = [components[part] for part in components if part.startswith("transformer")]
    last = [dict(transformer.named_modules()).get("proj_out", transformer) for transformer in transformers]

    def with_new_caches(run: Callable[[Place, list[Course]], list[Steps]], *jobs: Course) -> list[Steps]:
        hooks = [part.register_forward_hook(StepCache()) for part in last]
        try:
            return run(place(name, "float32"), [*jobs])
        finally:
            for hook in hooks:
                hook.remove()

    def each() -> list[Steps]:
        return [made for job in courses(name, "float32")[:2] for made in with_new_caches(one_by_one, job)]

    by_themselves = each()
    assert each() == by_themselves
    assert with_new_caches(in_batches, *courses(name, "float32")[:2]) != by_themselves


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_job_is_the_same_in_any_slot_of_a_batch_of_any_size(precision: str) -> None:
    [expected, *_] = alone("wan", precision)
    calls: set[int] = set()
    for size in (2, 3, 4):
        for slot in range(size):
            job, *others = courses("wan", precision)
            batch = [*others[:slot], job, *others[slot : size - 1]]
            there = place("wan", precision, sharing := Counting())
            for _ in range(3):
                turn(there, batch)
            assert job.steps.items() <= expected.items(), (size, slot)
            calls.update(sharing.calls)

    assert calls >= {3, 5, 7}


def test_only_what_denoises_with_modules_that_allow_it_shares() -> None:
    families = [family for family in every_card.families().values() if not family.card.stages]
    loops = [loop for family in families for loop in family.loops.values() if isinstance(loop, Counted)]

    assert {loop.semantics for loop in loops if loop.together} == {
        "wan.unipc.cfg/1", "wan.flow_unipc.cfg/1", "wan.i2v.unipc.cfg/1", "wan.unipc.cfg2/1", "wan.i2v.unipc.cfg2/1",
        "wan.dmd/1", "ltx2.guided/1", "ltx2.base/1", "ltx2.refine/1", "flux2.euler.cfg/1",
    }  # fmt: skip


def test_a_step_under_an_interceptor_is_executed_alone() -> None:
    opened = family(tiny.wan(), "float32", interceptor="step_skip")
    there = Place(load_models({opened.card.name: opened}))
    plain, intercepted = (
        Course(name, opened, {**JOBS[0], **CLIP, **more}, {}, "denoise")
        for name, more in (("plain", {}), ("intercepted", {"interceptors": {"step_skip": 0.5}}))
    )
    for _ in range(2):
        turn(there, [plain, intercepted])

    assert [course.plan is not None and course.plan.together for course in (plain, intercepted)] == [True, False]
    assert [course.results[-1].batch for course in (plain, intercepted)] == [1, 1]


# -- adapters ---------------------------------------------------------------------------------------------------


def adapted(number: int, *files: tuple[bytes, float]) -> tuple[Course, list[Given]]:
    loras, files_given = test_lora.asked(*files)
    request = {**JOBS[number % len(JOBS)], **CLIP, "seed": number, "loras": loras["loras"]}
    return Course(f"job-{number}", models("wan", "float32")[0], request, files_given, "denoise"), [
        *files_given.values()
    ]


def adapted_jobs(stacks: Sequence[Sequence[tuple[bytes, float]]]) -> tuple[Place, list[Course]]:
    jobs = [adapted(number, *files) for number, files in enumerate(stacks)]
    return Place(models("wan", "float32")[1], [one for _, files in jobs for one in files]), [job for job, _ in jobs]


def test_jobs_share_with_those_of_the_same_adapters_only() -> None:
    first, second = test_lora.first(), test_lora.second()
    stacks = ((), ((first, 1.0),), ((second, 2.0), (first, 0.5)), ((first, 0.5),), (), ((first, 1.0),))
    expected = one_by_one(*adapted_jobs(stacks))
    there, jobs = adapted_jobs(stacks)
    there.executor.sharing = sharing = Counting()
    for _ in range(3):
        sharing.calls.clear()
        turn(there, jobs)

    assert all(job.steps.items() <= steps.items() for job, steps in zip(jobs, expected, strict=True))
    assert sorted(sharing.calls) == [2, 2, 2, 4], (
        "the first and the fifth; the second and the last; each other its branches"
    )


def test_an_adapter_that_comes_while_a_job_runs_leaves_its_trajectory_as_it_was() -> None:
    first, second = test_lora.first(), test_lora.second()
    [expected, _] = one_by_one(*adapted_jobs((((first, 1.0),), ((second, 1.0),))))

    there, [job, other] = adapted_jobs((((first, 1.0),), ((second, 1.0),)))
    for batch in ([job], [job], [other], [job, other], [other, job], [job, other]):
        turn(there, batch)

    assert job.steps == expected


def test_more_adapters_than_stay_with_a_model_go_in_one_batch_each_by_its_content() -> None:
    files = [
        safetensors.torch.save(test_lora.tensors(test_lora.ATTENTION, 4, seed=number)) for number in range(MOST + 2)
    ]
    stacks = [((data, 1.0),) for data in files]
    there, batch = adapted_jobs(stacks)
    place_of_each, by_themselves = adapted_jobs(stacks)
    for _ in range(3):
        turn(there, batch)
        for job in by_themselves:
            turn(place_of_each, [job])

    assert [job.steps for job in batch] == [job.steps for job in by_themselves]
    assert len({job.steps["denoise", 1]["velocity"] for job in batch}) == MOST + 2
