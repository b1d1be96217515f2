"""Tokens dealt out to ranks, which are threads here: the bits of one rank, and a failure of one is one of all."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cards import ulysses
from cards.ulysses import parts
from cards.wan.dealt import deal
from tests.parity import tiny
from workers.errors import BranchFailed, step_error
from workers.ulysses import Ulysses

PATIENCE_S = 30.0


class Table:
    """Where threads meet."""

    def __init__(self, ranks: int) -> None:
        self.ranks = tuple(range(ranks))
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE_S)
        self._said: list[Any] = [None] * ranks

    def round(self, place: int, said: Any) -> list[Any]:
        self._said[place] = said
        self._barrier.wait()
        heard = [*self._said]
        self._barrier.wait()
        return heard


class Thread:
    """A rank's channel to the other threads."""

    def __init__(self, table: Table, place: int) -> None:
        self.place = place
        self.ranks = table.ranks
        self.exchanged = 0
        self.full_at: int | None = None
        self._table = table

    def agree(self, error: Exception | None = None) -> None:
        for failed in self._table.round(self.place, error):
            if failed is not None:
                raise BranchFailed(step_error(failed))

    def all_to_all(self, sent: Tensor, gives: list[int], takes: list[int]) -> Tensor:
        if self.exchanged == self.full_at:
            self.full_at = None
            raise MemoryError("none left for what comes")
        self.exchanged += 1
        came = [split[self.place] for split in self._table.round(self.place, sent.split(gives))]
        assert [len(one) for one in came] == takes
        return torch.cat(came)


def shared(
    transformer: Any,
    ranks: int,
    call: dict[str, Any],
    spoil: Callable[[Any], None] = lambda last: None,
    full_at: int | None = None,
) -> Any:
    """What each rank makes or raises, and how often it exchanged.

    `spoil` is done to the last one's transformer; `full_at` is the turn for which that one has no memory.
    """
    table = Table(ranks)
    channels = [Thread(table, place) for place in range(ranks)]
    channels[-1].full_at = full_at
    transformers = [copy.deepcopy(transformer) for _ in channels]
    spoil(transformers[-1])
    made: list[Any] = [None] * ranks

    def run(place: int) -> None:
        deal(transformers[place], Ulysses(channels[place]))
        try:
            with torch.inference_mode():
                made[place] = transformers[place](**call, return_dict=False)[0]
        except BranchFailed as error:
            made[place] = error.error

    threads = [threading.Thread(target=run, args=(place,)) for place in table.ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return made, [channel.exchanged for channel in channels]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def transformer(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    made = tiny.wan_transformer(num_attention_heads=6, rope_max_seq_len=64)
    return made.to(dtype).eval().requires_grad_(False)


def latent(dtype: torch.dtype, *shape: int) -> dict[str, Any]:
    """For so many samples, frames, rows and columns of patches."""
    torch.manual_seed(1)
    batch, frames, rows, columns = shape
    return {
        "hidden_states": torch.randn(batch, 16, frames, 2 * rows, 2 * columns, dtype=dtype),
        "timestep": torch.tensor([500] * batch),
        "encoder_hidden_states": torch.randn(batch, 512, 32, dtype=dtype),
    }


SHAPES = {
    "blocks": (1, 4, 4, 4),
    "blocks and a half": (1, 3, 4, 4),
    "uneven": (1, 5, 5, 7),
    "few more than blocks": (1, 4, 11, 11),
    "as many as queries go in fours of blocks": (1, 5, 13, 12),
    "two samples": (2, 5, 5, 7),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_shared_tokens_make_the_bits_of_one_rank(dtype: torch.dtype, shape: tuple[int, ...], ranks: int) -> None:
    model, call = transformer(dtype), latent(dtype, *shape)
    with torch.inference_mode():
        alone = model(**call, return_dict=False)[0]

    made, exchanged = shared(model, ranks, call)

    tokens = shape[1] * shape[2] * shape[3]
    assert exchanged == [5 if parts(tokens, ranks) else 0] * ranks
    for one in made:
        assert torch.equal(one, alone)
        assert one.stride() == alone.stride()


def test_parts_of_a_few_rows_would_make_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why tokens are dealt out in blocks."""
    model, call = transformer(torch.float32), latent(torch.float32, 1, 4, 4, 4)
    with torch.inference_mode():
        alone = model(**call, return_dict=False)[0]
    monkeypatch.setattr("workers.ulysses.parts", lambda tokens, degree: (tokens - 2, 2))

    made, _ = shared(model, 2, call)

    assert not torch.equal(made[0], alone)
    assert torch.equal(made[0], made[1])


@pytest.mark.parametrize("part", ["patch_embedding", "blocks.0.attn1.to_q", "blocks.1.attn1.to_out.0", "blocks.1.ffn"])
def test_a_part_that_fails_on_one_rank_fails_on_all_alike_and_leaves_nobody_waiting(part: str) -> None:
    def spoil(last: Any) -> None:
        def fails(*inputs: Any) -> None:
            raise MemoryError("none left")

        last.get_submodule(part).forward = fails

    made, exchanged = shared(transformer(torch.float32), 2, latent(torch.float32, 1, 4, 4, 4), spoil)

    assert [(error.kind, error.message) for error in made] == [("oom", "MemoryError: none left")] * 2
    assert exchanged == [5, 5]


@pytest.mark.parametrize("turn", range(5))
def test_a_rank_without_memory_for_what_comes_makes_that_turn_too(turn: int) -> None:
    made, exchanged = shared(transformer(torch.float32), 2, latent(torch.float32, 1, 4, 4, 4), full_at=turn)

    assert [error.kind for error in made] == ["oom", "oom"]
    assert exchanged == [5, 5]


@pytest.mark.parametrize(
    ("tokens", "degree", "dealt"),
    [
        (64, 2, (32, 32)),
        (48, 2, (32, 16)),
        (1560, 2, (768, 792)),
        (32_760, 4, (8192, 8192, 8192, 8184)),
        (175, 3, (64, 64, 47)),
        (31, 2, ()),
        (64, 3, ()),
        (97, 2, ()),
        (99, 2, ()),
        (100, 2, (64, 36)),
    ],
)
def test_parts_are_whole_blocks_and_what_is_left(tokens: int, degree: int, dealt: tuple[int, ...]) -> None:
    assert parts(tokens, degree) == dealt


@pytest.mark.parametrize("degree", [2, 3, 4, 8])
def test_no_part_is_a_few_rows(degree: int) -> None:
    for tokens in range(1, 2000):
        dealt = parts(tokens, degree)
        assert sum(dealt) in (0, tokens)
        assert all(part >= ulysses.LEAST for part in dealt)
        assert all(part % ulysses.BLOCK == 0 for part in dealt[:-1])
