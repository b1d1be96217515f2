"""Where a rank computes, and where the tensors of its steps are meanwhile."""

from collections.abc import Mapping

import pytest
import torch
from msgspec import Struct
from msgspec.structs import replace

from cards import codec
from cards.family import Components, Made
from cards.fingerprint import numerics, of_gpu, ran_on_cpu
from tests import toy
from tests.workers.units import CountingBlobs, digests, executor, sent, unit
from workers.devices import device_of, memory_of
from workers.errors import NoDevice
from workers.loaded import load_models
from workers.resident import Resident

X = torch.arange(6.0).reshape(2, 3)


class Gpu(Struct):
    name: str = "NVIDIA H200"
    major: int = 9
    minor: int = 0


def two() -> int:
    return 2


def none() -> int:
    return 0


@pytest.mark.parametrize(
    ("asked", "number", "device"),
    [
        ("cpu", 5, "cpu"),
        ("cuda", 0, "cuda:0"),
        ("cuda", 1, "cuda:1"),
        ("cuda:1", 0, "cuda:1"),
        ("auto", 0, "cuda:0"),
        ("auto", 1, "cuda:1"),
    ],
)
def test_ranks_take_gpus_in_order(asked: str, number: int, device: str) -> None:
    assert device_of(asked, number, two) == device


@pytest.mark.parametrize(("asked", "number"), [("cuda:2", 0), ("cuda:1", 1), ("auto", 2)])
def test_a_gpu_that_is_not_there_is_named_with_those_that_are(asked: str, number: int) -> None:
    with pytest.raises(NoDevice, match=f"device: {asked} needs cuda:2, and this machine has 2, cuda:0 to cuda:1"):
        device_of(asked, number, two)


def test_ranks_on_a_cpu_share_its_memory() -> None:
    assert memory_of("cpu", 4) == memory_of("cpu") // 4


def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_an_error() -> None:
    assert device_of("auto", 3, none) == "cpu"
    with pytest.raises(NoDevice, match="device: cuda needs cuda:0, and torch finds no GPU here; use cpu or auto"):
        device_of("cuda", 0, none)


def test_models_are_loaded_onto_the_device() -> None:
    class Recording(toy.ToyFamily):
        def load(self, device: str) -> Components:
            return {"loaded on": device}

    assert load_models({"toy": Recording()}, "cuda:1")["toy"].components == {"loaded on": "cuda:1"}


def test_a_step_reads_on_the_device_and_bytes_in_host_memory() -> None:
    seen: dict[str, str] = {}

    def body(reads: Mapping[str, torch.Tensor]) -> Made:
        seen.update({name: str(tensor.device) for name, tensor in reads.items()})
        return Made()

    runs = executor(body, device="meta")
    refs, frames = sent(x=X, file=torch.arange(3, dtype=torch.uint8))

    answer = runs.run(unit(refs, inline=digests(refs)), frames)

    assert answer.result.error is None
    assert seen == {"x": "meta", "file": "cpu"}


def test_what_a_step_makes_elsewhere_goes_on_where_a_resume_would_load_it() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []

    def body(reads: Mapping[str, torch.Tensor]) -> Made:
        seen.extend((str(tensor.device), tensor.stride()) for tensor in reads.values())
        return Made({"x": X.t()})

    runs = executor(body, device="meta")
    made = runs.run(unit(), []).result.tensors
    following = replace(unit(made, keep=digests(made)), id=replace(unit().id, version=2))

    assert runs.run(following, []).result.error is None
    assert seen == [("meta", X.t().stride())]


def test_what_is_stored_is_loaded_onto_the_device_once() -> None:
    blobs = CountingBlobs()
    refs, [data] = sent(x=X.t())
    blobs.put_named({refs["x"].digest: data})
    resident = Resident(blobs, "meta")

    loaded = resident.get("j", refs["x"])

    assert (str(loaded.device), loaded.stride()) == ("meta", X.t().stride())
    assert resident.get("j", refs["x"]) is loaded


def test_strides_survive_the_way_to_a_device() -> None:
    gaps = torch.zeros(4, 4)[:, :2]

    assert codec.decode(codec.encode(gaps)[1], "meta").stride() == gaps.stride()


def test_a_gpu_is_another_fingerprint_than_the_cpu_and_than_another_gpu() -> None:
    here, other = of_gpu(Gpu()), of_gpu(Gpu(name="NVIDIA L4", minor=9))

    assert here["device"] == "NVIDIA H200"
    assert here != other
    assert "attention" in here
    assert ran_on_cpu(numerics())
    assert not ran_on_cpu("device=NVIDIA_H200 isa=AVX2")
