"""What the flags of a command ask of a model."""

import argparse

import pytest

from ops import asked
from ops.errors import BadSettings


@pytest.mark.parametrize("prompt", ["\udcff", "\udcff\U0001f600", "a\U0001f600\udc80"])
def test_words_that_are_no_utf8_are_refused_whatever_else_is_in_them(prompt: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt")
    asked.flags(parser)

    with pytest.raises(BadSettings, match="prompt: is not valid UTF-8"):
        asked.request(parser.parse_args([prompt]))
    assert asked.request(parser.parse_args(["a\U0001f600"])) == {"prompt": "a\U0001f600"}


def test_an_interceptor_is_given_once() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt")
    asked.flags(parser)

    with pytest.raises(BadSettings, match="interceptor: 'step_skip' is given twice"):
        asked.request(parser.parse_args(["x", "--interceptor", "step_skip=0.1", "--interceptor", "step_skip=0.2"]))
