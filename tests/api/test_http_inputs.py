"""Sizes, frames and images over HTTP: taken, shown, kept apart by a key, and refused by name."""

import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from cards.card import Canvas, InputSpec, Preset
from tests.api.serving import app_of, without_sockets
from tests.sim import Running, World
from tests.toy import CARD, ToyFamily

CANVAS = Canvas(
    multiple=16,
    most_pixels=64 * 64,
    presets=(Preset(32, 48, 3.0), Preset(64, 64, 5.0)),
    frames_multiple=4,
    most_frames=81,
)
SIZED = replace(CARD, name="sized", output=replace(CARD.output, width=32, height=48, frames=9, canvas=CANVAS))
MOVING = replace(SIZED, name="moving", inputs={"image": InputSpec(kind="image")})
BIG = 300 * 1024
"""Bytes, more than a body may have where no model takes an image."""


def png(width: int = 4, height: int = 2, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def job(**fields: Any) -> dict[str, Any]:
    return {"model": "moving", "prompt": "a count", "image": url(png())} | fields


@pytest.fixture
async def idle() -> AsyncIterator[Running]:
    async with World(families=(ToyFamily(SIZED), ToyFamily(MOVING))).engine(workers=0) as running:
        yield running


async def test_a_job_shows_its_size_its_frames_and_what_came_along(http_idle: httpx.AsyncClient) -> None:
    answer = await http_idle.post("/v1/jobs", json=job(size="64x64", frames=5))

    assert answer.status_code == 202
    told = (await http_idle.get(answer.headers["location"])).json()
    assert (told["size"], told["frames"], list(told["inputs"])) == ("64x64", 5, ["image"])


async def test_what_is_left_out_is_the_models(http_idle: httpx.AsyncClient) -> None:
    told = (await http_idle.post("/v1/jobs", json={"model": "sized", "prompt": "a count", "size": None})).json()

    assert (told["size"], told["frames"], told["inputs"]) == ("32x48", 9, {})


async def test_the_image_is_that_of_the_job_whatever_it_came_as(idle: Running, http_idle: httpx.AsyncClient) -> None:
    bare = base64.encodebytes(png()).decode()  # with a newline after every 76 characters

    one = (await http_idle.post("/v1/jobs", json=job())).json()
    two = (await http_idle.post("/v1/jobs", json=job(image=bare))).json()

    assert one["inputs"] == two["inputs"]
    stored = (await idle.client.job(one["id"])).outputs["request.image"]
    assert (stored.dtype, stored.shape) == ("uint8", (2, 4, 3))


async def test_an_image_beyond_the_limit_of_other_bodies_is_taken(http_idle: httpx.AsyncClient) -> None:
    answer = await http_idle.post("/v1/jobs", json=job(image=url(png(400, 300))))

    assert answer.status_code == 202
    assert len(url(png(400, 300))) > BIG


async def test_a_key_stands_for_the_image_too(http_idle: httpx.AsyncClient) -> None:
    key = {"idempotency-key": "k"}

    first = await http_idle.post("/v1/jobs", json=job(seed=1), headers=key)
    again = await http_idle.post("/v1/jobs", json=job(seed=1), headers=key)
    other = await http_idle.post("/v1/jobs", json=job(seed=1, image=url(png(seed=1))), headers=key)

    assert first.json()["id"] == again.json()["id"]
    assert (other.status_code, other.json()["error"]["code"]) == (409, "key_reused")


@pytest.mark.parametrize(
    ("fields", "status", "param", "word"),
    [
        ({"size": "64"}, 422, "size", "32x48"),
        ({"size": "33x48"}, 422, "size", "multiples of 16"),
        ({"size": "64x80"}, 422, "size", "up to 4096"),
        ({"size": "0x16"}, 422, "size", "32x48"),
        ({"size": "9" * 257}, 400, "size", ""),
        ({"size": 64}, 400, "size", ""),
        ({"frames": 4}, 422, "frames", "multiple of 4"),
        ({"frames": 0}, 422, "frames", "from 1 to 81"),
        ({"frames": 85}, 422, "frames", "81"),
        ({"frames": "9"}, 400, "frames", ""),
        ({"image": None}, 422, "image", "needs one"),
        ({"image": ""}, 422, "image", "PNG"),
        ({"image": "https://example.org/a.png"}, 422, "image", "not its address"),
        ({"image": "data:image/png"}, 422, "image", "data:image/png;base64,"),
        ({"image": "data:image/png,abc"}, 422, "image", "base64"),
        ({"image": "ü"}, 422, "image", "base64"),
        ({"image": url(b"no picture")}, 422, "image", "PNG"),
        ({"image": url(png()[:40])}, 422, "image", "PNG"),
        ({"image": ["a"]}, 400, "image", ""),
        ({"model": "sized"}, 422, "image", "takes no such input"),
        ({"model": "nope"}, 404, "model", "moving"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    idle: Running, http_idle: httpx.AsyncClient, fields: dict[str, Any], status: int, param: str, word: str
) -> None:
    answer = await http_idle.post("/v1/jobs", json=job(**fields))

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert word in error["message"]
    assert await idle.client.jobs() == []


async def test_where_no_model_takes_an_image_bodies_stay_small() -> None:
    async with World().engine(workers=0) as running, without_sockets(app_of(running)) as http:
        answer = await http.post("/v1/jobs", json=job(model="toy", image="A" * BIG))

    assert answer.status_code == 413


async def test_a_fork_may_have_another_size(idle: Running, http_idle: httpx.AsyncClient) -> None:
    made = (await http_idle.post("/v1/jobs", json=job())).json()["id"]

    forked = await http_idle.post(f"/v1/jobs/{made}/fork", json={"at_step": 0, "set": {"size": "64x64", "frames": 5}})
    refused = await http_idle.post(f"/v1/jobs/{made}/fork", json={"at_step": 0, "set": {"frames": 6}})

    told = forked.json()
    assert (told["size"], told["frames"], list(told["inputs"])) == ("64x64", 5, ["image"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "frames")


async def test_the_fields_are_described(http_idle: httpx.AsyncClient) -> None:
    schemas = (await http_idle.get("/openapi.json")).json()["components"]["schemas"]

    assert {"size", "frames", "image"} <= set(schemas["JobRequest"]["properties"])
    assert {"size", "frames", "inputs"} <= set(schemas["Job"]["properties"])
    assert {"size", "frames"} <= set(schemas["Changes"]["properties"])
