"""A tiny model of every card, as they would be registered, and the shortest request that comes through each phase."""

import io
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from cards import registry
from cards.given import Given, picture
from cards.model import Model
from cards.request import GenerationRequest
from store.journal import Journal
from tests.parity import tiny, tiny_flux2, tiny_ltx2, tiny_wan
from tests.parity.reference import Digests, ended
from tests.sim import Running, World

SMALL = {"size": "32x16", "frames": 5}
REQUESTS: dict[str, dict[str, Any]] = {
    "wan": SMALL | {"steps": 3, "guidance": 4.0, "frames": 9},
    "i2v": SMALL | {"steps": 2},
    "a14b": SMALL | {"steps": 3},
    "student": SMALL,
    "causal": SMALL | {"frames": 21},
    "ltx2": {"size": "128x64", "frames": 9},
    "flux2": {"size": "48x32"},
    "story": {"size": "48x32", "steps": 2, "frames": 5},
}
"""By model; all of them have this seed and prompt besides."""

ASKED = {"prompt": "a red cat", "seed": 3}


@cache
def models() -> tuple[Model, ...]:
    causal, distilled = {"loop": "causal"}, {"recipe": "dmd"}
    return (
        Model(name="wan", folder=str(tiny.wan()), precision="bfloat16"),
        Model(name="i2v", folder=str(tiny_wan.from_image())),
        Model(name="a14b", folder=str(tiny_wan.experts())),
        Model(name="student", folder=str(tiny.wan()), options=distilled),
        Model(name="causal", folder=str(tiny.wan()), options=causal),
        Model(name="ltx2", folder=str(tiny_ltx2.ltx2("2.3"))),
        Model(name="flux2", folder=str(tiny_flux2.flux2(distilled=True))),
        Model(name="story", folder="", options={"picture": "flux2", "clip": "i2v"}),
    )


@cache
def families() -> registry.Registry:
    return registry.load([], models())


def world(journal: Journal | None = None, names: Iterable[str] = REQUESTS) -> World:
    return World(journal, [families()[name] for name in names])


@cache
def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 70, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def given(model: str) -> dict[str, Given]:
    return {"image": picture("image", png())} if model == "i2v" else {}


async def submit(running: Running, model: str, **changes: Any) -> str:
    asked = GenerationRequest(model=model, **ASKED | REQUESTS[model] | changes)
    return (await running.client.submit(asked, given=given(model))).id


async def alone(running: Running, model: str, **changes: Any) -> Digests:
    """What a job makes while no other is there."""
    return (await ended(running, await submit(running, model, **changes))).steps
