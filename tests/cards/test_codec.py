"""Tensors as bytes: what goes in comes out, with its memory layout, in any process."""

import contextlib
import json
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cards import codec

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool)


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Any bits at all: floats have NaNs with payloads, infinities and denormals among them."""
    count = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return bytes(dense.flatten().view(torch.uint8).tolist())


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Whole, transposed and sliced tensors, empty and without dimensions among them."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    tensor = random_bits(shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**31)))
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    return tensor[tuple(slice(draw(st.integers(0, 2)), None, draw(st.integers(1, 3))) for _ in shape)]


@settings(deadline=None)
@given(tensors())
def test_a_tensor_comes_back_with_its_bits_and_its_strides(tensor: torch.Tensor) -> None:
    ref, data = codec.encode(tensor)
    back = codec.decode(data)

    assert bits(back) == bits(tensor)
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert (ref.shape, ref.strides, ref.nbytes) == (tuple(back.shape), back.stride(), back.nbytes)
    assert back.storage_offset() == 0


@settings(deadline=None)
@given(tensors())
def test_equal_content_has_one_digest_wherever_it_lies(tensor: torch.Tensor) -> None:
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)

    ref, data = codec.encode(copy)

    assert (ref, data) == codec.encode(tensor)
    assert codec.encode(codec.decode(data)) == (ref, data)
    assert ref.digest == codec.digest(data)


@settings(deadline=None)
@given(tensors())
def test_the_bytes_are_those_that_safetensors_writes(tensor: torch.Tensor) -> None:
    metadata = {"strides": json.dumps(tensor.stride())}

    assert codec.encode(tensor)[1] == safetensors.torch.save({codec.KEY: tensor.contiguous()}, metadata)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16]
)
def test_the_bytes_of_rare_types_too(dtype: torch.dtype) -> None:
    tensor = random_bits((3, 2), dtype)

    assert codec.encode(tensor)[1] == safetensors.torch.save({codec.KEY: tensor}, {"strides": "[2, 1]"})


def test_other_strides_are_another_tensor() -> None:
    rows = random_bits((3, 4), torch.float32)
    columns = rows.t().contiguous().t()

    assert codec.encode(rows)[0].digest != codec.encode(columns)[0].digest


def test_another_type_with_the_same_bytes_is_another_tensor() -> None:
    zeros = {codec.encode(torch.zeros(4, dtype=dtype))[0].digest for dtype in DTYPES}

    assert len(zeros) == len(DTYPES)


@pytest.mark.parametrize("overlapping", [torch.ones(1, 3).expand(4, 3), torch.arange(6.0).as_strided((3, 3), (1, 1))])
def test_a_tensor_whose_elements_share_memory_comes_back_dense(overlapping: torch.Tensor) -> None:
    ref, data = codec.encode(overlapping)

    assert torch.equal(codec.decode(data), overlapping)
    assert ref.strides == overlapping.contiguous().stride()


def test_what_is_decoded_is_nobody_elses_memory() -> None:
    _, data = codec.encode(torch.zeros(4))

    codec.decode(data).fill_(1)

    assert torch.equal(codec.decode(data), torch.zeros(4))


def test_a_gradient_is_not_kept() -> None:
    assert not codec.decode(codec.encode(torch.zeros(2, requires_grad=True))[1]).requires_grad


@settings(deadline=None)
@given(st.integers(0, 2000), st.integers(1, 255))
def test_damaged_bytes_are_a_value_error_or_another_digest(place: int, flip: int) -> None:
    ref, data = codec.encode(random_bits((3, 4), torch.float32))
    place %= len(data)
    damaged = data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]

    with contextlib.suppress(ValueError):
        codec.decode(damaged)
    assert codec.digest(damaged) != ref.digest


@settings(deadline=None)
@given(st.binary(max_size=64) | st.integers(0, 100).map(lambda cut: codec.encode(torch.ones(9))[1][:cut]))
def test_bytes_that_are_no_blob_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a tensor blob"):
        codec.decode(data)


@pytest.mark.parametrize(
    "strides", ["[4]", f"[{10**30}, 1]", "[-4, 1]", "[0, 1]", "[1, 1]", "null", "7", '["4", 1]', "{}", "[[4], 1]"]
)
def test_strides_that_cannot_be_are_a_value_error(strides: str) -> None:
    import safetensors.torch

    data = safetensors.torch.save({codec.KEY: torch.zeros(3, 4)}, metadata={"strides": strides})

    with pytest.raises(ValueError, match="not a tensor blob"):
        codec.decode(data)


def test_a_safetensors_file_of_another_kind_is_a_value_error() -> None:
    import safetensors.torch

    for name, metadata in (("weights", {"strides": "[1]"}), (codec.KEY, {"a": "b"}), (codec.KEY, None)):
        with pytest.raises(ValueError, match="not a tensor blob"):
            codec.decode(safetensors.torch.save({name: torch.zeros(3)}, metadata=metadata))


def test_elements_that_are_missing_or_too_many_are_a_value_error() -> None:
    _, data = codec.encode(torch.ones(9))

    for wrong in (data[:-1], data + b"?", data.replace(b"[9]", b"[8]")):
        with pytest.raises(ValueError, match="not a tensor blob"):
            codec.decode(wrong)


def test_another_process_reads_the_same_tensor() -> None:
    tensor = random_bits((4, 6, 2), torch.bfloat16).permute(2, 0, 1)[:, ::2]
    ref, data = codec.encode(tensor)
    code = (
        "import sys; from cards import codec; tensor = codec.decode(sys.stdin.buffer.read());"
        "print(codec.encode(tensor)[0].digest, tensor.stride())"
    )

    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)

    assert done.stdout.decode().strip() == f"{ref.digest} {tensor.stride()}"
