"""Memory that runs out in a step: one more try with what others can spare, and then its job fails and no other."""

import mmap
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping

import numpy as np
import psutil
import pytest
import safetensors.torch
import torch
from msgspec.structs import replace

from cards import codec
from cards.branches import COMPONENT, in_order
from cards.cache_key import CacheKey
from cards.errors import NotFinite
from cards.family import Made
from tests.workers.units import CountingBlobs, digests, executor, sent, unit
from workers.caches import ADAPTER, FEATURE, SLAB_KV, STEP, Caches
from workers.errors import step_error
from workers.execute import Executor
from workers.loaded import Loaded
from workers.resident import Held, Resident

X = torch.arange(6.0).reshape(2, 3)
TOO_MUCH = 1 << 50


class Wants:
    """A body for which there is no memory the first few times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.runs = 0

    def __call__(self, reads: Mapping[str, torch.Tensor]) -> Made:
        self.runs += 1
        if self.left:
            self.left -= 1
            torch.empty(TOO_MUCH)
        return Made({"y": reads["x"] + 1} if reads else {})


@pytest.mark.parametrize(
    "wish",
    [
        lambda: torch.empty(TOO_MUCH),
        lambda: torch.zeros(2).expand(TOO_MUCH, 2).contiguous(),
        lambda: np.empty(TOO_MUCH),
        lambda: bytearray(TOO_MUCH),
    ],
)
def test_whoever_is_refused_memory_the_kind_is_the_same(wish: Callable[[], object]) -> None:
    def body(reads: Mapping[str, torch.Tensor]) -> Made:
        wish()
        return Made()

    error = executor(body).run(unit(), []).result.error

    assert error is not None
    assert error.kind == "oom"


@pytest.mark.parametrize("message", ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"])
def test_a_library_on_a_gpu_that_finds_no_memory_says_so_in_words(message: str) -> None:
    assert step_error(RuntimeError(message)).kind == "oom"
    assert step_error(ValueError(message)).kind == "error"
    assert step_error(NotFinite("loop", 1, "out of memory", nan=1, inf=0, of=1)).kind == "nan"


def test_no_memory_to_map_a_file_is_no_memory() -> None:
    """In a process of its own, which may have no more than so much."""
    code = "from tests.workers import test_memory; test_memory.map_too_much()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["oom", "oom"]
    assert step_error(FileNotFoundError("out of memory")).kind == "error"


def map_too_much() -> None:
    torch.zeros(1)
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(TOO_MUCH >> 10)
        resource.setrlimit(resource.RLIMIT_AS, (TOO_MUCH >> 12, TOO_MUCH >> 12))
        for take in (
            lambda: torch.UntypedStorage.from_file(file.name, False, TOO_MUCH >> 10),
            lambda: mmap.mmap(file.fileno(), TOO_MUCH >> 10),
        ):
            try:
                take()
            except (RuntimeError, OSError) as error:
                sys.stdout.write(f"{step_error(error).kind} ")


def test_no_memory_for_what_a_step_reads_is_no_damage_of_it() -> None:
    data = safetensors.torch.save({codec.KEY: torch.zeros(2)}, metadata={"strides": f"[{TOO_MUCH}]"})
    refs, _ = sent(x=X)
    refs = {"x": replace(refs["x"], digest=codec.digest(data))}

    error = executor(lambda reads: Made()).run(unit(refs, inline=digests(refs)), [data]).result.error

    assert error is not None
    assert error.kind == "oom"
    with pytest.raises(RuntimeError, match="can't allocate"):
        codec.decode(data)


def test_a_step_has_one_more_try() -> None:
    body = Wants(1)
    refs, frames = sent(x=X)

    answer = executor(body).run(unit(refs, inline=digests(refs)), frames)

    assert answer.result.error is None
    assert torch.equal(codec.decode(answer.frames[0]), X + 1)
    assert body.runs == 2


def test_a_step_has_no_third_try_and_the_one_after_it_is_unharmed() -> None:
    body = Wants(2)
    runs = executor(body)
    refs, frames = sent(x=X)
    asked = unit(refs, inline=digests(refs))

    error = runs.run(asked, frames).result.error
    following = runs.run(replace(asked, id=replace(asked.id, job="other")), frames)

    assert error is not None
    assert error.kind == "oom"
    assert body.runs == 3
    assert torch.equal(codec.decode(following.frames[0]), X + 1)


def test_a_step_that_ranks_share_has_no_try_of_its_own() -> None:
    body = Wants(1)
    loaded = Loaded({}, {"step": lambda components, plan, reads: body(reads)}, {COMPONENT: in_order})

    error = Executor({"toy": loaded}, CountingBlobs()).run(unit(), []).result.error

    assert error is not None
    assert body.runs == 1


def test_what_others_hold_is_theirs_after_room_was_made() -> None:
    resident = Resident(CountingBlobs())
    refs, [data] = sent(x=X.t())
    for job in ("mine", "other"):
        resident.admit(job, digests(refs), {refs["x"].digest: data})

    resident.make_room("mine")

    assert resident.held() == Held(2, 2 * X.nbytes)
    assert torch.equal(resident.get("other", refs["x"]), X.t())
    assert resident.get("other", refs["x"]).stride() == X.t().stride()


def test_what_others_hold_in_the_cache_of_slabs_leaves_it_and_stays_theirs() -> None:
    resident, key = Resident(CountingBlobs()), CacheKey(model="m", components=())
    refs, _ = sent(x=X)
    for job in ("mine", "other"):
        resident.slabs(job, {refs["x"].digest: key})
        resident.put(job, refs["x"], X)

    resident.make_room("other")
    assert resident.caches.uses()[SLAB_KV].entries == 1
    resident.make_room("mine")

    assert resident.caches.uses()[SLAB_KV].entries == 0
    assert torch.equal(resident.get("other", refs["x"]), X)
    assert resident.digests("other") == {refs["x"].digest}


def test_a_step_that_runs_out_of_memory_is_given_what_is_kept_and_nobody_holds() -> None:
    caches, seen = Caches(), []
    for name in (ADAPTER, FEATURE):
        caches.put(name, CacheKey(model="m", components=()), "kept", 1 << 20, STEP)
    caches.release(STEP)

    def body(reads: Mapping[str, torch.Tensor]) -> Made:
        seen.append({name: use.nbytes for name, use in caches.uses().items() if use.nbytes})
        raise MemoryError

    executor(body, caches=caches).run(unit(), [])

    assert seen == [{ADAPTER: 1 << 20, FEATURE: 1 << 20}, {}]


def test_what_lies_in_host_memory_comes_to_the_device_when_it_is_read() -> None:
    resident = Resident(CountingBlobs(), "meta")
    refs, _ = sent(x=X.t(), file=torch.zeros(3, dtype=torch.uint8))
    resident.put("j", refs["x"], X.t())
    resident.put("j", refs["file"], torch.zeros(3, dtype=torch.uint8))

    read = resident.get("j", refs["x"])

    assert (str(read.device), read.stride()) == ("meta", X.t().stride())
    assert resident.get("j", refs["x"]) is read
    assert str(resident.get("j", refs["file"]).device) == "cpu"


BIG = 2 << 20


def test_nothing_is_left_of_jobs_that_fail() -> None:
    """In a process of its own: what others have freed in this one would hide it."""
    code = "from tests.workers import test_memory; test_memory.fail_and_fail()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after_20, after_200 = map(int, done.stdout.split())

    assert after_200 - after_20 < 20 * BIG


def fail_and_fail() -> None:
    runs = executor(hold_and_fail)
    for count in (20, 180):
        for number in range(count):
            fail(runs, f"job-{count}-{number}")
        assert runs.resident.held() == Held(0, 0)
        sys.stdout.write(f"{psutil.Process().memory_info().rss} ")


def fail(runs: Executor, job: str) -> None:
    made = runs.execute(unit(job=job), []).result.tensors
    following = unit(made, keep=digests(made), job=job)
    assert runs.execute(replace(following, id=replace(following.id, version=2)), []).result.error is not None
    runs.resident.release(job)


def hold_and_fail(reads: Mapping[str, torch.Tensor]) -> Made:
    x = torch.full((BIG,), 7, dtype=torch.uint8)
    if reads:
        raise ValueError(f"{x.nbytes} bytes are not enough")
    return Made({"x": x})
