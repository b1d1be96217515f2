"""A cache as one tensor: the bytes are MessagePack's, and nothing is copied twice on the way."""

import msgspec
import pytest
import torch

from cards import codec, pack
from tests.memory import most
from workers.naming import Naming

SMALL = 1 << 18
"""What Python itself may take."""


def written(entries: list[pack.Entry]) -> bytes:
    blobs = [one if one is None or isinstance(one, str) else codec.encode(one)[1] for one in entries]
    return msgspec.msgpack.encode(blobs)


def cache(count: int = 16, nbytes: int = 1 << 20) -> list[pack.Entry]:
    """What a VAE leaves: tensors, and words and gaps among them."""
    tensors = [torch.full((nbytes // 4,), index, dtype=torch.float32) for index in range(count)]
    return [None, "Rep", *tensors]


CACHES: dict[str, list[pack.Entry]] = {
    "empty": [],
    "words": ["Rep", None],
    "no elements": [torch.zeros(0, 3)],
    "a number": [torch.tensor(1.5)],
    "transposed": [torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1), None],
    "with gaps": [torch.arange(24.0)[::3]],
    "expanded": [torch.arange(4.0)[:, None].expand(4, 5)],
    "longer than a byte says": [torch.zeros(size, dtype=torch.uint8) for size in range(200)],
    "longer than two bytes say": [torch.zeros(size, dtype=torch.uint8) for size in (65000, 65500, 66000)],
    "more than two bytes say": [None] * 66000,
    "bfloat16": [torch.ones(3, 5, dtype=torch.bfloat16)],
}


@pytest.mark.parametrize("name", CACHES)
def test_it_is_the_list_of_the_blobs_and_comes_back(name: str) -> None:
    entries = CACHES[name]

    packed = pack.pack(entries)
    back = pack.unpack(packed)

    assert packed.numpy().tobytes() == written(entries)
    assert written(back) == written(entries)


def test_what_is_unpacked_is_nobody_elses_memory() -> None:
    packed = pack.pack([torch.zeros(4)])
    [tensor] = pack.unpack(packed)

    assert isinstance(tensor, torch.Tensor)
    tensor.fill_(1)

    assert packed.equal(pack.pack([torch.zeros(4)]))


@pytest.mark.parametrize("strided", [False, True])
def test_packing_takes_what_is_packed_and_at_most_one_tensor_beside_it(strided: bool) -> None:
    entries = [one.view(2, -1).t() if strided and isinstance(one, torch.Tensor) else one for one in cache()]
    packed = pack.pack(entries)

    taken = most(lambda: pack.pack(entries))

    assert packed.nbytes <= taken <= packed.nbytes + strided * (1 << 20) + SMALL


def test_unpacking_takes_the_tensors() -> None:
    packed = pack.pack(cache())

    taken = most(lambda: pack.unpack(packed))

    assert 16 << 20 <= taken <= packed.nbytes + SMALL


@pytest.mark.parametrize("store", [False, True])
def test_naming_takes_what_is_stored(store: bool) -> None:
    packed = pack.pack(cache())

    taken = most(lambda: Naming({}, {}, frozenset()).name({"cache": packed}, store=store))

    assert store * packed.nbytes <= taken <= store * packed.nbytes + SMALL
