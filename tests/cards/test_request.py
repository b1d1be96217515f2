"""What may be asked of a card: every limit names its field, and nothing is left open."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cards.card import ModelCard, Range
from cards.errors import InvalidRequest
from cards.request import MAX_SEED, GenerationRequest, ResolvedRequest, resolve
from tests.toy import CARD

FOUR_STEPS = replace(CARD, recipe=replace(CARD.recipe, method="dmd", steps=Range(4, 4, 4), guidance=Range(1, 1, 1)))


def asked(**fields: Any) -> GenerationRequest:
    return GenerationRequest(**{"model": "toy", "prompt": "a count"} | fields)


def resolved(card: ModelCard = CARD, **fields: Any) -> ResolvedRequest:
    return resolve(asked(**fields), card, random.Random(0))


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("prompt", ""),
        ("prompt", " \t\n"),
        ("prompt", "x" * 100_000),
        ("prompt", "a\0count"),
        ("negative_prompt", "x" * 1001),
        ("negative_prompt", "\0"),
        ("seed", -1),
        ("seed", MAX_SEED + 1),
        ("steps", 0),
        ("steps", -3),
        ("steps", 20_001),
        ("guidance", -0.1),
        ("guidance", 10.1),
        ("guidance", float("nan")),
        ("guidance", float("inf")),
        ("guidance", float("-inf")),
        ("preview_every", -1),
        ("preview_every", MAX_SEED + 1),
        ("priority", -101),
        ("priority", 101),
        ("metadata", {"k" * 65: "v"}),
        ("metadata", {"k": "v" * 513}),
        ("metadata", {"k": "\0"}),
        ("metadata", {"\0": "v"}),
        ("metadata", {str(n): "v" for n in range(17)}),
    ],
)
def test_what_cannot_be_asked_names_its_field(field: str, bad: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolved(**{field: bad})

    assert caught.value.field == field
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "edge",
    [
        {"prompt": "x" * 1000, "negative_prompt": "x" * 1000},
        {"seed": 0},
        {"seed": MAX_SEED},
        {"steps": 1, "guidance": 0.0},
        {"steps": 20_000, "guidance": 10.0},
        {"priority": -100},
        {"priority": 100},
        {"metadata": {f"{n:064}": "v" * 512 for n in range(16)}},
    ],
)
def test_the_edges_may_be_asked(edge: dict[str, Any]) -> None:
    for field, value in edge.items():
        assert getattr(resolved(**edge), field) == value


@pytest.mark.parametrize(("field", "bad"), [("steps", 50), ("steps", 3), ("guidance", 3.0)])
def test_a_distilled_card_refuses_what_its_weights_were_not_made_for(field: str, bad: float) -> None:
    with pytest.raises(InvalidRequest, match=r"recipe \(dmd\) allows: (4 to 4|1 to 1)") as caught:
        resolved(FOUR_STEPS, **{field: bad})

    assert caught.value.field == field


def test_what_was_left_out_is_the_cards_choice() -> None:
    request = resolved(FOUR_STEPS)

    assert (request.model, request.steps, request.guidance) == ("toy", 4, 1.0)


@given(st.integers())
def test_a_seed_that_was_left_out_is_drawn_once_and_within_range(chance: int) -> None:
    source = random.Random(chance)

    first, second = (resolve(asked(), CARD, source).seed for _ in range(2))

    assert 0 <= first < 2**32
    assert first == random.Random(chance).randrange(2**32)
    assert first != second


def test_a_given_seed_draws_nothing() -> None:
    source = random.Random(1)
    before = source.getstate()

    assert resolve(asked(seed=5), CARD, source).seed == 5
    assert source.getstate() == before


REQUESTS = st.builds(
    GenerationRequest,
    model=st.just("toy"),
    prompt=st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=50).filter(str.strip),
    negative_prompt=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=50),
    seed=st.none() | st.integers(0, MAX_SEED),
    steps=st.none() | st.integers(1, 20_000),
    guidance=st.none() | st.floats(0, 10) | st.integers(0, 10),
    preview_every=st.integers(0, 100),
    priority=st.integers(-100, 100),
    metadata=st.dictionaries(st.sampled_from("abc"), st.text(st.characters(codec="utf-8", exclude_characters="\0"))),
)


@given(REQUESTS)
def test_asking_again_for_what_was_resolved_gives_the_same(request: GenerationRequest) -> None:
    once = resolve(request, CARD, random.Random(1))

    assert resolve(GenerationRequest(**msgspec.structs.asdict(once)), CARD, random.Random(2)) == once


@given(REQUESTS)
def test_a_resolved_request_is_the_same_bytes_once_it_has_been_on_disk(request: GenerationRequest) -> None:
    once = msgspec.msgpack.encode(resolve(request, CARD, random.Random(1)))

    assert msgspec.msgpack.encode(msgspec.msgpack.decode(once, type=ResolvedRequest)) == once


def test_an_unknown_field_is_refused_where_it_is_read() -> None:
    with pytest.raises(msgspec.ValidationError, match="stepz"):
        msgspec.json.decode(b'{"model": "toy", "prompt": "p", "stepz": 4}', type=GenerationRequest)
