"""Guidance policies: which branches a step evaluates, and what comes of them."""

import pytest
import torch

from cards.guidance import ClassifierFree

POLICY = ClassifierFree("text", "negative")
OUTPUTS = {"text": torch.tensor([1.0, 2.0]), "negative": torch.tensor([0.0, 4.0])}


@pytest.mark.parametrize(("guidance", "expected"), [(0.0, [0.0, 4.0]), (2.0, [2.0, 0.0]), (3.5, [3.5, -3.0])])
def test_guidance_goes_from_the_unconditional_past_the_conditional(guidance: float, expected: list[float]) -> None:
    scalars = {"guidance": guidance}

    combined, remembered = POLICY.combine(OUTPUTS, scalars)

    assert POLICY.branches(scalars) == ("text", "negative")
    assert combined.tolist() == expected
    assert remembered == {}


@pytest.mark.parametrize("one", [1, 1.0])
def test_guidance_one_is_the_conditional_branch_alone(one: float) -> None:
    assert POLICY.branches({"guidance": one}) == ("text",)

    combined, _ = POLICY.combine({"text": OUTPUTS["text"]}, {"guidance": one})

    assert combined is OUTPUTS["text"]
