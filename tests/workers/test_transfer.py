"""Both ends of a transfer, without a wire: what comes, in what pieces, and how much is ever on its way."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cards import codec
from cards.codec import Parts
from cards.wire import Fetch, TensorRef, UnitId
from tests.carrying import carry, deliver
from workers.transfer import PART_BYTES, Ask, Enough, Further, Gone, Lender, Part, Shared
from workers.transfer_fetcher import Fetcher

UNIT = UnitId("j", 1, 1, 1)


def tensors(*nbytes: int) -> dict[str, torch.Tensor]:
    """Of so many bytes, by digest."""
    made = [torch.full((size,), index, dtype=torch.uint8) for index, size in enumerate(nbytes)]
    return {codec.encode(tensor)[0].digest: tensor for tensor in made}


def blobs(there: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    return {digest: codec.encode(tensor)[1] for digest, tensor in there.items()}


def lender(there: Mapping[str, torch.Tensor], **options: Any) -> Lender:
    return Lender(lambda job, digest: codec.parts(there[digest]) if digest in there else None, **options)


def fetch(there: Mapping[str, Any], address: str = "holder") -> Fetch:
    return Fetch(address, tuple(there))


class Pages:
    """Shared memory that a test can look into: what is open, by number."""

    def __init__(self) -> None:
        self.open: dict[int, bytes] = {}
        self.opened = 0
        self.damaged = self.full = False

    def share(self, parts: Parts) -> "Page":
        if self.full:
            raise OSError("no memory is left")
        self.opened += 1
        data = b"".join(parts)
        self.open[self.opened] = data[:-1] + bytes([data[-1] ^ self.damaged])
        return Page(self, self.opened)

    def read(self, shared: Shared) -> bytes:
        return self.open[shared.fd]


class Page:
    pid = 1

    def __init__(self, pages: Pages, fd: int) -> None:
        self.fd = fd
        self._pages = pages

    def close(self) -> None:
        del self._pages.open[self.fd]


@given(sizes=st.lists(st.integers(0, 3 * PART_BYTES), min_size=1, max_size=4), askers=st.integers(1, 2))
@settings(max_examples=12, deadline=None)
def test_what_is_held_comes_whole_and_never_is_more_on_its_way_than_either_end_allows(
    sizes: list[int], askers: int
) -> None:
    there = tensors(*sizes)
    holder = lender(there, most=3 * PART_BYTES)
    fetcher = Fetcher(most=2 * PART_BYTES, patience_s=1e9)

    def look() -> None:
        assert fetcher.in_flight <= 2 * PART_BYTES
        assert holder.in_flight <= 3 * PART_BYTES

    for serial in range(askers):
        fetcher.begin(UnitId("j", 1, 1, 1, serial), fetch(there), 0.0)
    deliver(fetcher, {"holder": holder}, look=look)

    assert [brought.blobs for brought in fetcher.brought] == [blobs(there)] * askers
    assert not fetcher.busy
    assert holder.in_flight == fetcher.in_flight == 0
    assert fetcher.fetched.tensors == askers * len(there)
    assert fetcher.fetched.nbytes == askers * sum(map(len, blobs(there).values()))


def test_a_holder_sends_no_further_than_it_was_let() -> None:
    [digest] = there = tensors(3 * PART_BYTES)
    holder = lender(there)
    holder.heard(b"a", Ask(1, "j", digest, PART_BYTES), 0.0)

    sent = [frame.nbytes for _, _, [frame] in holder.outbox]
    assert sum(sent) == PART_BYTES == holder.in_flight
    holder.outbox.clear()
    holder.heard(b"a", Further(1, PART_BYTES, 2 * PART_BYTES), 0.0)
    assert sum(frame.nbytes for _, _, [frame] in holder.outbox) == PART_BYTES
    holder.heard(b"a", Enough(1), 0.0)
    assert holder.in_flight == 0


def test_a_holder_sends_to_others_when_one_asker_takes_nothing_and_then_forgets_that_one() -> None:
    first, second = there = tensors(2 * PART_BYTES, PART_BYTES)
    holder = lender(there, most=2 * PART_BYTES, patience_s=5.0)
    holder.heard(b"stuck", Ask(1, "j", first, 2 * PART_BYTES), 0.0)
    holder.heard(b"other", Ask(1, "j", second, 2 * PART_BYTES), 4.0)
    assert {asker for asker, _, _ in holder.outbox} == {b"stuck"}, "all that may be out is"

    holder.expire(6.0)
    assert {asker for asker, _, _ in holder.outbox} == {b"stuck", b"other"}
    holder.lost(b"other")
    assert holder.in_flight == 0


def test_what_is_larger_than_all_that_may_be_out_is_out_alone() -> None:
    there = tensors(4 * PART_BYTES, 10)
    pages = Pages()
    holder, fetcher = lender(there, most=PART_BYTES, share=pages.share, place="here"), Fetcher(pages.read, "here")
    fetcher.begin(UNIT, fetch(there), 0.0)
    deliver(fetcher, {"holder": holder}, look=lambda: None)

    assert fetcher.brought[0].blobs == blobs(there)
    assert (pages.opened, pages.open) == (2, {})


@pytest.mark.parametrize("missing", [0, 1])
def test_what_a_holder_has_forgotten_does_not_come_and_the_rest_does(missing: int) -> None:
    there = tensors(100, 200)
    kept = {digest: tensor for n, (digest, tensor) in enumerate(there.items()) if n != missing}
    fetcher = Fetcher()
    fetcher.begin(UNIT, fetch(there), 0.0)
    carry(fetcher, {"holder": lender(kept)})

    assert fetcher.brought[0].blobs == blobs(kept)
    assert fetcher.fetched.failed == 1


def test_other_bytes_than_the_digest_says_are_not_brought() -> None:
    [digest] = there = tensors(100)
    other = {digest: next(iter(there.values())) + 1}
    fetcher = Fetcher()
    fetcher.begin(UNIT, fetch(there), 0.0)
    carry(fetcher, {"holder": lender(other)})

    assert fetcher.brought[0].blobs == {}
    assert (fetcher.fetched.tensors, fetcher.fetched.failed) == (0, 1)


@pytest.mark.parametrize("part", [Part(1, 7, 100), Part(1, 0, 3), Part(1, 0, 0)])
def test_a_part_that_does_not_follow_ends_its_tensor(part: Part) -> None:
    fetcher = Fetcher()
    fetcher.begin(UNIT, fetch({"d": 0}), 0.0)
    fetcher.heard("holder", part, [b"1234"], 0.0)

    assert fetcher.brought[0].blobs == {}


def test_a_holder_that_falls_silent_in_the_middle_is_given_up_and_others_are_not_held_up() -> None:
    [lost] = dying = tensors(3 * PART_BYTES)
    other = {digest: tensor for digest, tensor in tensors(0, 50).items() if tensor.numel() == 50}
    fetcher = Fetcher(patience_s=5.0)
    fetcher.begin(UNIT, fetch(dying, "dying"), 0.0)
    fetcher.begin(UnitId("k", 1, 1, 1), fetch(other, "well"), 0.0)
    holder = lender(dying)
    _, ask = fetcher.outbox[0]
    assert isinstance(ask, Ask)
    assert ask.digest == lost
    holder.heard(b"a", ask, 0.0)
    _, message, [frame] = holder.outbox.popleft()
    fetcher.heard("dying", message, [bytes(frame)], 1.0)
    deliver(fetcher, {"well": lender(other)})

    assert [brought.unit.job for brought in fetcher.brought] == ["k"]
    fetcher.expire(5.9)
    assert fetcher.busy
    fetcher.expire(6.1)
    assert [(brought.unit.job, brought.blobs) for brought in fetcher.brought][1:] == [("j", {})]
    fetcher.heard("dying", Gone(1), [], 7.0)
    assert not fetcher.busy, "what comes too late is nothing any more"


def test_a_holder_of_whom_nothing_is_heard_is_given_up_with_all_that_others_would_wait_behind() -> None:
    there = tensors(100)
    fetcher = Fetcher(most=4 * PART_BYTES, patience_s=5.0)
    for number in range(8):
        fetcher.begin(UnitId(f"lost-{number}", 1, 1, 1), fetch(dict.fromkeys("ab"), "dead"), 0.0)
    fetcher.begin(UnitId("well", 1, 1, 1), fetch(there, "well"), 0.0)

    fetcher.expire(5.1)
    assert [brought.unit.job for brought in fetcher.brought] == [f"lost-{number}" for number in range(8)]
    carry(fetcher, {"well": lender(there)}, now=5.1)

    assert fetcher.brought[-1].blobs == blobs(there)


def test_one_tensor_of_which_nothing_is_heard_is_given_up_alone_where_others_come_from_there() -> None:
    fetcher = Fetcher(patience_s=5.0)
    fetcher.begin(UNIT, Fetch("slow", ("first", "second")), 0.0)
    fetcher.heard("slow", Part(1, 0, 2 * PART_BYTES), [bytes(PART_BYTES)], 4.0)

    fetcher.expire(5.1)
    assert (fetcher.fetched.failed, fetcher.busy) == (1, True)
    fetcher.expire(9.1)
    assert (fetcher.fetched.failed, fetcher.busy) == (2, False)


def test_on_one_machine_the_bytes_are_read_where_they_are_and_nothing_stays_open() -> None:
    there = tensors(PART_BYTES, 10)
    pages = Pages()
    fetcher, holder = Fetcher(pages.read, "here"), lender(there, share=pages.share, place="here")
    fetcher.begin(UNIT, fetch(there), 0.0)
    carry(fetcher, {"holder": holder})

    assert fetcher.brought[0].blobs == blobs(there)
    assert (pages.opened, pages.open) == (2, {})


@pytest.mark.parametrize(
    "trouble", ["elsewhere", "damaged", "full", "unreadable", "too large to read", "an asker that cannot"]
)
def test_what_cannot_be_read_where_it_is_is_sent(trouble: str) -> None:
    there = tensors(2 * PART_BYTES, 10)
    pages = Pages()
    pages.damaged, pages.full = trouble == "damaged", trouble == "full"

    def unreadable(shared: Shared) -> bytes:
        raise PermissionError if trouble == "unreadable" else MemoryError

    read = {"unreadable": unreadable, "too large to read": unreadable, "an asker that cannot": None}.get(
        trouble, pages.read
    )
    place = "there" if trouble == "elsewhere" else "here"
    fetcher, holder = Fetcher(read, "here"), lender(there, share=pages.share, place=place)
    fetcher.begin(UNIT, fetch(there), 0.0)
    carry(fetcher, {"holder": holder})

    assert fetcher.brought[0].blobs == blobs(there)
    assert pages.open == {}


def test_an_asker_that_dies_leaves_no_memory_open() -> None:
    [digest] = there = tensors(100)
    pages = Pages()
    holder = lender(there, share=pages.share, place="here", patience_s=5.0)
    holder.heard(b"a", Ask(1, "j", digest, 0, "here"), 0.0)
    assert len(pages.open) == 1

    holder.expire(5.1)
    assert (pages.open, holder.busy) == ({}, False)


def test_a_tensor_in_any_layout_comes_as_it_is() -> None:
    chance = torch.Generator().manual_seed(1)
    layouts = [
        torch.randn(3, 5, generator=chance).t(),
        torch.randn(4, 4, generator=chance, dtype=torch.float64)[1:, ::2],
        torch.randn(1, generator=chance).expand(6),
        torch.randn(2, 3, generator=chance).to(torch.bfloat16),
        torch.empty(0, 3),
    ]
    refs: dict[str, tuple[TensorRef, bytes, torch.Tensor]] = {}
    for tensor in layouts:
        ref, data = codec.encode(tensor)
        refs[ref.digest] = (ref, data, tensor)
    fetcher = Fetcher()
    fetcher.begin(UNIT, fetch(refs), 0.0)
    carry(fetcher, {"holder": lender({digest: tensor for digest, (_, _, tensor) in refs.items()})})

    assert fetcher.brought[0].blobs == {digest: data for digest, (_, data, _) in refs.items()}


def test_words_that_come_twice_or_late_do_no_harm() -> None:
    there = tensors(random.Random(1).randrange(PART_BYTES, 3 * PART_BYTES))
    holder, fetcher = lender(there), Fetcher()
    fetcher.begin(UNIT, fetch(there), 0.0)
    holder.heard(b"asker", Further(9, 0, 99), 0.0)
    holder.heard(b"asker", Enough(9), 0.0)
    carry(fetcher, {"holder": holder})
    holder.heard(b"asker", Enough(1), 0.0)

    assert fetcher.brought[0].blobs == blobs(there)
    assert (holder.busy, len(holder.outbox)) == (False, 0)
