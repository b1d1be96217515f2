"""Sizes and frames: what a card can make is filled in or taken, everything else is refused with what would do."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cards import canvas
from cards.card import Canvas, Preset
from cards.errors import InvalidRequest
from cards.request import GenerationRequest, RequestChanges, resolve, revise
from tests.toy import CARD

CANVAS = Canvas(
    multiple=16,
    most_pixels=1280 * 720,
    presets=(Preset(832, 480, 3.0), Preset(1280, 720, 5.0)),
    frames_multiple=4,
    most_frames=81,
)
SIZED = replace(CARD, output=replace(CARD.output, width=832, height=480, frames=81, fps=16, canvas=CANVAS))


def choose(size: str | None = None, frames: int | None = None) -> tuple[str | None, int | None]:
    return canvas.choose(size, frames, SIZED)


def test_what_is_left_out_is_the_cards() -> None:
    assert choose() == ("832x480", 81)
    assert choose(size="480x832") == ("480x832", 81)
    assert choose(frames=1) == ("832x480", 1)


def test_a_card_of_one_size_takes_no_other() -> None:
    output = CARD.output

    assert canvas.choose(None, None, CARD) == (None, None)
    assert canvas.choose(f"{output.width}x{output.height}", output.frames, CARD) == (None, None)
    with pytest.raises(InvalidRequest, match="toy makes 1x1 only; leave it out"):
        canvas.choose("832x480", None, CARD)
    with pytest.raises(InvalidRequest, match="toy makes 1 only; leave it out"):
        canvas.choose(None, 81, CARD)


@pytest.mark.parametrize(
    "size", ["", "832", "832X480", "832×480", "832x", " 832x480", "-16x16", "0x16", "016x16", "1٦x16"]
)
def test_what_is_no_size_is_told_of_those_there_are(size: str) -> None:
    with pytest.raises(InvalidRequest, match="832x480, 1280x720") as caught:
        choose(size=size)

    assert caught.value.field == "size"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("833x480", "multiples of 16"),
        ("832x481", "multiples of 16"),
        ("1280x736", "942080 pixels; up to 921600"),
        ("99984x16", "up to 921600"),
    ],
)
def test_a_size_beyond_the_canvas_is_told_its_limit(size: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        choose(size=size)

    assert caught.value.field == "size"


@pytest.mark.parametrize("frames", [-3, 0, 2, 4, 80, 82, 85])
def test_frames_are_one_more_than_a_multiple(frames: int) -> None:
    with pytest.raises(InvalidRequest, match="one more than a multiple of 4, from 1 to 81") as caught:
        choose(frames=frames)

    assert caught.value.field == "frames"


@given(width=st.integers(1, 80), height=st.integers(1, 45), frames=st.integers(0, 20))
def test_what_is_chosen_is_what_is_made(width: int, height: int, frames: int) -> None:
    size = f"{16 * width}x{16 * height}"

    request = resolve(_asked(size=size, frames=4 * frames + 1), SIZED, random.Random(0))

    assert canvas.pixels(request, SIZED.output) == (16 * width, 16 * height, 4 * frames + 1)


def test_a_request_of_one_size_makes_the_cards() -> None:
    assert canvas.pixels(resolve(_asked(), CARD, random.Random(0)), CARD.output) == (1, 1, 1)


@pytest.mark.parametrize(("size", "shift"), [((832, 480), 3.0), ((480, 832), 3.0), ((1280, 704), 5.0), ((16, 16), 3.0)])
def test_the_shift_is_that_of_the_nearest_preset(size: tuple[int, int], shift: float) -> None:
    assert CANVAS.shift(*size) == shift


@pytest.mark.parametrize("size", ["832x16", "16x832"])
def test_a_side_and_an_aspect_may_be_as_much_as_is_said(size: str) -> None:
    request = resolve(_asked(size=size), SIZED, random.Random(0))

    canvas.check_sides(request, SIZED.output, 832)
    canvas.check_aspect(request, SIZED.output, 52)
    for check, words in ((canvas.check_sides, "up to 51 each"), (canvas.check_aspect, "up to 51 times the other")):
        with pytest.raises(InvalidRequest, match=words) as caught:
            check(request, SIZED.output, 51)
        assert caught.value.field == "size"


def test_a_fork_may_change_the_size_and_is_checked_like_any_request() -> None:
    request = resolve(_asked(seed=1), SIZED, random.Random(0))

    assert revise(request, RequestChanges(size="480x832", frames=5), SIZED).size == "480x832"
    with pytest.raises(InvalidRequest, match="frames"):
        revise(request, RequestChanges(frames=6), SIZED)


def _asked(**fields: Any) -> GenerationRequest:
    return GenerationRequest(model="toy", prompt="a count", **fields)
