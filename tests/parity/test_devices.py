"""Bodies on another device than the CPU: all that they make of tensors there is there, and of the same shapes.

torch's `meta` device has shapes and no values, and mixes with the CPU no better than a GPU does.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from cards import codec
from cards.branches import alone
from cards.family import Components, Family, Made, StepBody
from cards.shapes.family import FAMILY as SHAPES
from cards.wire import WorkPlan
from tests.parity import tiny, tiny_flux2, tiny_ltx2, tiny_wan
from tests.parity.reference import family, run

REQUEST: dict[str, Any] = {
    "prompt": "a red cat", "negative_prompt": "blurry", "seed": 3, "steps": 3, "guidance": 2.0, "size": "64x64",
    "frames": 5,
}  # fmt: skip

VALUES = {
    "encode_text": "tokenizers' masks are looked into",
    "encode_image": "CLIP's preprocessing is numpy's",
    "decode": "frames and caches are bytes",
    "decode_vae": "frames and caches are bytes",
    "decode_video": "frames are numpy's",
    "render": "files are made of values",
}
"""Kinds that ask for values, which are not there."""


class Twice:
    """A family whose steps are also run on `meta`, just before."""

    def __init__(self, opened: Family) -> None:
        self.card = opened.card
        self.loops = opened.loops
        self.weights_digest = opened.weights_digest
        self.notices = opened.notices
        self.load = opened.load
        self.ran: set[str] = set()
        self._bodies = opened.bodies()
        self._elsewhere = opened.load("meta")

    def bodies(self) -> Mapping[str, StepBody]:
        return {kind: self._twice(kind, body) for kind, body in self._bodies.items()}

    def _twice(self, kind: str, body: StepBody) -> StepBody:
        def step(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Made:
            made = alone(components, body(components, plan, reads))
            if kind not in VALUES:
                there = {name: tensor.to(codec.home(tensor.dtype, "meta")) for name, tensor in reads.items()}
                self._compare(kind, made, alone(self._elsewhere, body(self._elsewhere, plan, there)))
            return made

        return step

    def _compare(self, kind: str, made: Made, there: Made) -> None:
        self.ran.add(kind)
        for name, tensor in there.tensors.items():
            assert tensor.is_meta or tensor.dtype == torch.uint8, (kind, name)
            assert (tensor.shape, tensor.dtype) == (made.tensors[name].shape, made.tensors[name].dtype), (kind, name)


@pytest.mark.parametrize(
    ("opened", "changes", "kinds"),
    [
        (lambda: family(tiny.wan(), "bfloat16"), {}, {"denoise", "denoise.fold"}),
        (lambda: family(tiny.wan("euler"), "float32"), {}, {"denoise", "denoise.fold"}),
        (lambda: family(tiny_wan.experts(), "float32"), {}, {"denoise", "denoise.fold"}),
        (lambda: family(tiny_flux2.flux2(), "float32"), {"frames": None}, {"denoise"}),
        (lambda: family(tiny_ltx2.ltx2("2.3"), "float32", recipe="guided"), {"frames": 9}, {"denoise", "decode_audio"}),
        (
            lambda: family(tiny.wan(), "float32", loop="causal"),
            {"guidance": None, "steps": None, "frames": 21},
            {"denoise", "context"},
        ),
        (lambda: SHAPES, {"size": None, "frames": None}, {"denoise"}),
    ],
)
async def test_what_a_step_makes_of_tensors_elsewhere_is_there(
    opened: Any, changes: dict[str, Any], kinds: set[str]
) -> None:
    twice = Twice(opened())

    await run(twice, {name: value for name, value in (REQUEST | changes).items() if value is not None})

    assert kinds <= twice.ran
