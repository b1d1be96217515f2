"""What a worker keeps between steps and jobs: who may have it, how long it stays, and what takes it away."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from cards import cache_key
from cards.cache_key import Adapter, CacheKey, Origin, Version
from cards.family import Components, Made, Reads, StepBody
from cards.shapes.card import CARD
from cards.shapes.family import Shapes
from cards.wire import Release, StepResult, TensorRef, UnitId, WorkPlan, WorkUnit
from tests.workers.units import CountingBlobs, sent
from workers.caches import ADAPTER, BUDGETS, FEATURE, SLAB_KV, STEP, WEIGHTS, Caches
from workers.execute import Executor
from workers.inbox import Inbox
from workers.loaded import load_models

REFS, FRAMES = sent(x=torch.arange(4.0))


# -- keys ----------------------------------------------------------------------------------------------------------


def origin(**weights: str) -> Origin:
    digests = dict.fromkeys(CARD.components, "w") | weights
    return Origin(CARD, {name: Version(name, weight) for name, weight in digests.items()})


def encode(**changes: Any) -> WorkPlan:
    plan = WorkPlan(
        instance="shapes", loop="encode_text", kind="encode_text", step=0, scalars={"prompt": "a"}, writes=("text",)
    )
    return replace(plan, feature=True, **changes)


def of(plan: WorkPlan, **weights: str) -> CacheKey:
    return cache_key.of_feature(origin(**weights), plan)


def with_lora(file: str, strength: float) -> WorkPlan:
    """`lora/0` is its name, whatever is in it."""
    reads = {"lora/0": replace(REFS["x"], digest=file)}
    return encode(reads=reads, scalars={"prompt": "a", "lora/0": strength})


@pytest.mark.parametrize(
    "other",
    [
        encode(scalars={"prompt": "b"}),
        encode(scalars={"prompt": "a", "negative_prompt": ""}),
        encode(scalars={"prompt": "a", "seed": 1}),
        encode(scalars={"prompt": "a", "guidance": 1.0}),
        encode(scalars={"prompt": "a", "steps": 1}),
        encode(scalars={"prompt": "a", "width": 8}),
        encode(reads={"image": REFS["x"]}),
        encode(writes=("text", "tokens")),
        encode(emits=("preview",)),
        encode(kind="encode_text.fold"),
        encode(loop="denoise"),
    ],
    ids=lambda plan: ",".join(sorted({*plan.scalars, *plan.reads, *plan.emits, plan.kind, plan.loop})),
)
def test_whatever_a_step_is_given_is_in_the_key(other: WorkPlan) -> None:
    assert of(other) != of(encode())


@pytest.mark.parametrize("name", ["guidance", "seed", "steps", "whatever"])
def test_numbers_that_are_equal_and_not_the_same_have_other_keys(name: str) -> None:
    values = (1, 1.0, True, "1", 0.0, -0.0)

    assert len({of(encode(scalars={name: value})) for value in values}) == len(values)


def test_neither_job_nor_step_is_in_the_key_of_a_feature_and_the_step_is_in_that_of_a_slab() -> None:
    later = encode(step=3)
    slab = cache_key.of_slab(origin(), encode(), "kv", REFS["x"])

    assert of(later) == of(encode())
    assert cache_key.of_slab(origin(), later, "kv", REFS["x"]) != slab
    assert "job" not in CacheKey.__struct_fields__


def test_a_lora_with_the_same_name_and_other_bytes_misses() -> None:
    """Also the same bytes at another strength; the same bytes again hit."""
    assert of(with_lora("one", 1.0)) != of(with_lora("other", 1.0))
    assert of(with_lora("one", 1.0)) != of(with_lora("one", 0.5))
    assert of(with_lora("one", 1.0)) == of(with_lora("one", 1.0))


def test_an_embedding_is_shared_by_those_with_equal_adapters_of_the_text_encoder_only() -> None:
    """What a step reads decides: an adapter of the transformer is no input of the step that encodes."""
    assert of(with_lora("te", 1.0)) != of(encode())
    assert of(encode()).adapters == ()
    assert of(with_lora("te", 1.0)).adapters == (Adapter("te", "1.0"),)


def test_a_key_names_the_components_that_the_loop_needs_and_no_others() -> None:
    assert of(encode(), transformer="new") == of(encode())
    assert of(encode(), text_encoder="new") != of(encode())
    assert of(encode(loop="story-encode_text")).components == of(encode()).components  # as a stage of a workflow


# -- classes -------------------------------------------------------------------------------------------------------


def key(name: str, component: str = "text_encoder", weights: str = "w") -> CacheKey:
    return CacheKey(model="m", components=(Version(component, weights),), inputs=(("name", name),))


def filled(*names: str, budget: int = 10, holder: str = "j") -> Caches:
    caches = Caches(BUDGETS | {FEATURE: budget})
    for name in names:
        caches.put(FEATURE, key(name), name, 4, holder)
    return caches


def there(caches: Caches, *names: str) -> list[str]:
    return [name for name in names if caches.get(FEATURE, key(name), STEP) is not None]


def test_what_was_used_longest_ago_goes_first() -> None:
    caches = filled("a", "b")
    caches.release("j")
    caches.get(FEATURE, key("a"), STEP)
    caches.release(STEP)

    caches.put(FEATURE, key("c"), "c", 4, STEP)

    assert there(caches, "a", "b", "c") == ["a", "c"]
    assert caches.uses()[FEATURE].evicted == 1


def test_what_a_job_holds_stays_over_budget_until_it_lets_go() -> None:
    caches = filled("a", "b", "c")

    assert caches.uses()[FEATURE].nbytes == 12
    caches.release("j")
    assert there(caches, "a", "b", "c") == ["b", "c"]


def test_what_two_hold_stays_until_both_let_go() -> None:
    caches = filled("a", budget=0)
    caches.get(FEATURE, key("a"), "k")

    caches.release("j")
    assert caches.uses()[FEATURE].entries == 1
    caches.release("k")
    assert caches.uses()[FEATURE].entries == 0


def test_what_was_made_with_other_weights_is_not_found() -> None:
    caches = filled("a")

    assert caches.get(FEATURE, key("a", weights="new"), "j") is None
    assert caches.get(FEATURE, key("a", "transformer"), "j") is None
    assert caches.get(FEATURE, key("a"), "j") == "a"


def test_who_keeps_something_elsewhere_is_told_when_it_goes() -> None:
    gone: list[str] = []
    caches = Caches(BUDGETS | {ADAPTER: 4})
    for name in ("a", "b"):
        caches.put(ADAPTER, key(name), name, 4, STEP, lambda name=name: gone.append(name))

    assert gone == []
    caches.release(STEP)
    assert gone == ["a"]


def test_nothing_but_the_modules_is_left_after_a_clear() -> None:
    caches = filled("a")
    caches.put(WEIGHTS, key("w"), "w", 4, STEP)

    caches.clear(but={WEIGHTS})

    assert {name for name, use in caches.uses().items() if use.entries} == {WEIGHTS}


# -- steps ---------------------------------------------------------------------------------------------------------


class Words(Shapes):
    """Encodes as some function of all that it is given, and leaves keys and values as a rollout does."""

    def __init__(self, **weights: str) -> None:
        super().__init__()
        self.ran: list[str] = []
        self._digests = dict.fromkeys(CARD.components, "w") | weights

    def component_digests(self) -> Mapping[str, str]:
        return self._digests

    def load(self, device: str) -> Components:
        return {name: len(weights) for name, weights in self._digests.items()}

    def bodies(self) -> Mapping[str, StepBody]:
        return {"encode_text": self._encode, "denoise": self._context}

    def _encode(self, components: Components, plan: WorkPlan, reads: Reads) -> Made:
        self.ran.append(str(plan.scalars["prompt"]))
        given = [float(len(self.ran[-1])), float(plan.scalars.get("seed", 0)), float(components["text_encoder"])]
        return Made({"text": torch.tensor([*given, *(float(one.sum()) for one in reads.values())])})

    def _context(self, components: Components, plan: WorkPlan, reads: Reads) -> Made:
        return Made({f"kv/{plan.step}": reads["text"] * plan.step})


def worker(family: Words, **budgets: int) -> Executor:
    caches = Caches(BUDGETS | budgets)
    return Executor(load_models({"shapes": family}), CountingBlobs(), caches=caches)


def unit(job: str, plan: WorkPlan, *, version: int = 1, inline: bool = False) -> WorkUnit:
    digests = tuple(ref.digest for ref in plan.reads.values())
    return WorkUnit(UnitId(job, 1, version, 1), plan, inline=digests if inline else (), keep=digests)


def test_a_group_of_one_prompt_encodes_once_and_every_job_is_answered_in_full() -> None:
    runs = worker(family := Words())

    answers = [runs.run(unit(f"job-{n}", encode(step=0)), []) for n in range(3)]

    assert family.ran == ["a"]
    assert [answer.result.reused for answer in answers] == [False, True, True]
    assert len({answer.frames for answer in answers}) == 1
    assert len({tuple(answer.result.tensors.items()) for answer in answers}) == 1
    assert runs.caches.uses()[FEATURE].hits == 2
    assert runs.resident.held().tensors == 1  # they share it


def test_a_step_that_is_computed_is_not_said_to_be_reused_where_its_fold_is() -> None:
    class Folding(Words):
        def bodies(self) -> Mapping[str, StepBody]:
            return {**super().bodies(), "encode_text.fold": self._halve}

        def _halve(self, components: Components, plan: WorkPlan, reads: Reads) -> Made:
            return Made({"half": reads["made/text"] / 2})

    runs = worker(family := Folding())
    plan = encode(derives=("half",), writes=("text", "half"))
    runs.run(unit("one", plan), [])
    runs.caches.drop(FEATURE, lambda key: key.kind == "encode_text")

    result = runs.run(unit("two", plan), []).result

    assert family.ran == ["a", "a"]
    assert runs.caches.uses()[FEATURE].hits == 1
    assert not result.reused


def test_a_step_that_is_no_feature_is_computed_for_each_job() -> None:
    runs = worker(family := Words())

    for job in ("one", "two"):
        assert not runs.run(unit(job, replace(encode(), feature=False)), []).result.reused
    assert family.ran == ["a", "a"]


@pytest.mark.parametrize("seed", ["none", float("nan")])
def test_an_error_is_no_feature(seed: Any) -> None:
    runs = worker(family := Words())
    broken = encode(scalars={"prompt": "a", "seed": seed})

    assert all(runs.run(unit(job, broken), []).result.error for job in ("one", "two"))
    assert family.ran == ["a", "a"]


def context(text: TensorRef, step: int) -> WorkPlan:
    name = f"kv/{step}"
    return WorkPlan(
        instance="shapes",
        loop="denoise",
        kind="denoise",
        step=step,
        reads={"text": text},
        derives=(name,),
        slabs=(name,),
    )


def test_the_keys_and_values_of_a_job_are_counted_and_go_with_it_also_when_it_is_cancelled() -> None:
    runs = worker(Words())
    text = runs.run(unit("j", encode()), []).result.tensors["text"]
    first = runs.run(unit("j", context(text, 1)), []).result.tensors["kv/1"]
    kept = runs.caches.uses()[SLAB_KV]
    assert (kept.entries, kept.nbytes) == (1, first.nbytes)

    inbox = Inbox()
    inbox.release(Release("j", 1))  # which is how a job ends, is cancelled, and leaves a worker
    command = inbox.get().message
    assert isinstance(command, Release)
    runs.resident.release(command.job)

    assert (kept.entries, kept.nbytes) == (0, 0)
    assert runs.caches.uses()[FEATURE].entries == 1  # it is within budget, and no job's


def test_keys_and_values_that_the_job_reads_no_more_go_at_once() -> None:
    runs = worker(Words())
    text = runs.run(unit("j", encode()), []).result.tensors["text"]
    first = runs.run(unit("j", context(text, 2)), []).result.tensors["kv/2"]
    reads = replace(context(text, 3), reads={"text": text, "kv/2": first})

    second = runs.run(unit("j", reads, version=2), []).result.tensors["kv/3"]
    assert runs.caches.uses()[SLAB_KV].entries == 2
    assert torch.equal(runs.resident.get("j", first), torch.tensor([2.0, 0.0, 2.0]))

    after = replace(context(text, 4), reads={"text": text, "kv/3": second})
    runs.run(unit("j", after, version=3), [])
    assert runs.caches.uses()[SLAB_KV].entries == 2  # kv/3 and kv/4


class Histories(RuleBasedStateMachine):
    """Units of some jobs, releases, updates and clears in any order, against workers that keep nothing."""

    JOBS = ("one", "two", "three")
    jobs = st.sampled_from(JOBS)
    prompts = st.sampled_from(("", "a", "bb", "cc"))
    scalars = st.fixed_dictionaries({"prompt": prompts}, optional={"seed": st.sampled_from((0, 1, 0.0))})

    @initialize(budget=st.sampled_from((0, 16, 40, 1 << 20)))
    def start(self, budget: int) -> None:
        self.budgets = {FEATURE: budget, SLAB_KV: 0}
        self.weights = "w"
        self.texts: dict[str, TensorRef] = {}
        self.versions = 0
        self.runs = worker(Words(), **self.budgets)

    @rule(job=jobs, scalars=scalars, step=st.integers(0, 2), read=st.booleans())
    def encodes(self, job: str, scalars: dict[str, Any], step: int, read: bool) -> None:
        plan = encode(scalars=scalars, step=step, reads=REFS if read else {})
        frames = FRAMES if read else []
        self.versions += 1
        made = self.runs.run(unit(job, plan, version=self.versions, inline=read), list(frames))
        fresh = worker(Words(text_encoder=self.weights)).run(
            unit(job, plan, version=self.versions, inline=read), list(frames)
        )
        assert said(made.result) == said(fresh.result)
        assert made.frames == fresh.frames
        self.texts[job] = made.result.tensors["text"]

    @rule(job=jobs, step=st.integers(1, 3))
    def leaves_keys_and_values(self, job: str, step: int) -> None:
        if job in self.texts:
            self.versions += 1
            plan = context(self.texts[job], step)
            assert self.runs.run(unit(job, plan, version=self.versions), []).result.error is None

    @rule(job=jobs)
    def ends(self, job: str) -> None:
        self.runs.resident.release(job)
        self.texts.pop(job, None)

    @rule(weights=st.sampled_from(("w", "ww", "www")))
    def is_updated(self, weights: str) -> None:
        """As a worker that has other weights of one component, and still keeps what was made with those before."""
        caches = self.runs.caches
        self.weights = weights
        self.runs = Executor(load_models({"shapes": Words(text_encoder=weights)}), CountingBlobs(), caches=caches)
        for job in self.JOBS:
            self.ends(job)

    @rule()
    def is_cleared(self) -> None:
        self.runs.resident.clear()
        self.texts.clear()
        assert not any(use.nbytes or use.entries for use in self.runs.caches.uses().values())

    @invariant()
    def within_budget_but_for_what_is_held(self) -> None:
        for name, cache in self.runs.caches._classes.items():
            free = sum(kept.nbytes for kept in cache.entries.values() if not kept.holders)
            assert cache.use.nbytes == sum(kept.nbytes for kept in cache.entries.values())
            assert not free or cache.use.nbytes <= self.budgets.get(name, 1 << 40)

    def teardown(self) -> None:
        if hasattr(self, "runs"):
            for job in self.JOBS:
                self.ends(job)
            uses = self.runs.caches.uses()
            assert uses[SLAB_KV].entries == 0
            assert uses[FEATURE].nbytes <= self.budgets[FEATURE]
            assert not self.runs.caches._held


def said(result: StepResult) -> StepResult:
    """But for its seconds, and where it came from."""
    return replace(result, seconds=0.0, batch_seconds=0.0, reused=False)


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestHistories = Histories.TestCase


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("jk"), st.booleans()), max_size=30))
def test_a_class_never_forgets_what_somebody_holds(history: list[tuple[str, str, bool]]) -> None:
    caches, held = Caches(BUDGETS | {FEATURE: 8}), set[tuple[str, str]]()
    for name, holder, uses in history:
        if uses:
            caches.put(FEATURE, key(name), name, 4, holder)
            held.add((name, holder))
        else:
            caches.let_go(FEATURE, key(name), holder)
            held.discard((name, holder))
        assert {name for name, _ in held} <= set(there(caches, *"abcdef"))
        caches.release(STEP)
