"""What a plan says of Wan's tensors is what a job makes, name by name."""

import random

import pytest

from cards.request import GenerationRequest, resolve
from cards.sizes import Measurable
from tests.parity import tiny
from tests.parity.reference import ended, family
from tests.sim import World

REQUEST = {"prompt": "a red cat", "seed": 3, "steps": 3, "guidance": 4.0, "size": "48x32", "frames": 9}


@pytest.mark.parametrize(
    ("scheduler", "precision"), [("unipc", "float32"), ("unipc", "bfloat16"), ("euler", "bfloat16")]
)
async def test_every_tensor_has_the_planned_size(scheduler: str, precision: str) -> None:
    wan = family(tiny.wan(scheduler), precision)
    assert isinstance(wan, Measurable)
    asked = GenerationRequest(model=wan.card.name, **REQUEST)  # type: ignore[arg-type]
    sizes = wan.sizes(resolve(asked, wan.card, random.Random(0)))
    loops = {node.name: node.loop for node in wan.card.program.nodes}

    async with World(families=(wan,)).engine() as running:
        made = await ended(running, (await running.client.submit(asked)).id)
        steps = await running.client.checkpoints(made.job.id)

    tensors = [(sizes[loops[step.loop]], name, ref) for step in steps for name, ref in step.tensors.items()]
    assert len(tensors) > 10
    *_, cache = [(ref, loop.of(name)) for loop, name, ref in tensors if name == "cache"]  # the first one holds half
    assert cache[0].nbytes == pytest.approx(cache[1].nbytes, abs=4096)  # headers
    for loop, name, ref in tensors:
        if name != "cache":
            assert (ref.shape, ref.dtype) == (loop.of(name).shape, loop.of(name).dtype), name
