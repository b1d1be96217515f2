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
CHUNKS = {"size": "32x16", "frames": 21}
STAGES = {"size": "128x64", "frames": 9}
SOUND = {"size": "64x64", "frames": 9, "steps": 2}
REQUESTS: dict[str, dict[str, Any]] = {
    "wan": SMALL | {"steps": 3, "guidance": 4.0, "frames": 9},
    "flow": SMALL | {"steps": 3},
    "i2v": SMALL | {"steps": 2},
    "a14b": SMALL | {"steps": 3},
    "i2v-a14b": SMALL | {"steps": 3},
    "student": SMALL,
    "causal": CHUNKS,
    "windowed": CHUNKS,
    "ltx2": STAGES,
    "ltx2-guided": SOUND,
    "ltx2.3": STAGES,
    "ltx2.3-guided": SOUND,
    "flux2": {"size": "48x32", "steps": 3, "guidance": 3.0},
    "flux2-distilled": {"size": "48x32"},
    "story": {"size": "48x32", "steps": 2, "frames": 5},
}
"""By model; all of them have this seed and prompt besides."""

ASKED = {"prompt": "a red cat", "seed": 3}

FROM_IMAGE = ("i2v", "i2v-a14b")
"""Those whose request comes with `png()`."""

WINDOW = {"window": "5", "sink": "1"}
"""In frames: of the three before it the second chunk sees the first, which is the sink, and the last."""


@cache
def models() -> tuple[Model, ...]:
    half: Any = {"precision": "bfloat16"}
    causal, guided = {"loop": "causal"}, {"recipe": "guided"}
    wan, ltx2, ltx23 = str(tiny.wan()), str(tiny_ltx2.ltx2("2.0")), str(tiny_ltx2.ltx2("2.3"))
    return (
        Model(name="wan", folder=wan, **half),
        Model(name="flow", folder=wan, options={"solver": "flow_unipc"}),
        Model(name="i2v", folder=str(tiny_wan.from_image())),
        Model(name="a14b", folder=str(tiny_wan.experts())),
        Model(name="i2v-a14b", folder=str(tiny_wan.experts_from_image()), **half),
        Model(name="student", folder=wan, options={"recipe": "dmd"}),
        Model(name="causal", folder=wan, options=causal),
        Model(name="windowed", folder=wan, options=causal | WINDOW),
        Model(name="ltx2", folder=ltx2),
        Model(name="ltx2-guided", folder=ltx2, options=guided, **half),
        Model(name="ltx2.3", folder=ltx23),
        Model(name="ltx2.3-guided", folder=ltx23, options=guided),
        Model(name="flux2", folder=str(tiny_flux2.flux2()), **half),
        Model(name="flux2-distilled", folder=str(tiny_flux2.flux2(distilled=True))),
        Model(name="story", folder="", options={"picture": "flux2-distilled", "clip": "i2v"}),
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
    return {"image": picture("image", png())} if model in FROM_IMAGE else {}


async def submit(running: Running, model: str, **changes: Any) -> str:
    asked = GenerationRequest(model=model, **ASKED | REQUESTS[model] | changes)
    return (await running.client.submit(asked, given=given(model))).id


async def alone(running: Running, model: str, **changes: Any) -> Digests:
    """What a job makes while no other is there."""
    return (await ended(running, await submit(running, model, **changes))).steps
