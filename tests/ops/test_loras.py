"""`--lora FILE:STRENGTH`, from the command line to the log."""

import base64
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from cards import lora
from ops import loras
from ops.errors import BadSettings
from tests import toy
from tests.api.serving import app_of, without_sockets
from tests.sim import World

HEADER = msgspec.json.encode({"transformer.a.lora_A.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
FILE = len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)


TAKES_LORAS = toy.ToyFamily(replace(toy.CARD, inputs=lora.INPUTS))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a:b.safetensors"
    path.write_bytes(FILE)
    return path


@pytest.mark.parametrize(("said", "strength"), [(":0.5", 0.5), (":-2", -2.0), ("", 1.0)])
def test_a_file_may_be_given_a_strength(file: Path, said: str, strength: float) -> None:
    [read] = loras.read([f"{file}{said}"])

    assert read == {"data": base64.b64encode(FILE).decode(), "strength": strength}


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("nowhere.safetensors:1", "cannot read nowhere.safetensors"),
        ("x:inf", "inf is no strength"),
        ("", "'' names no file; give FILE or FILE:STRENGTH"),
        (":0.5", "':0.5' names no file; give FILE or FILE:STRENGTH"),
    ],
)
def test_what_cannot_be_asked_is_said(said: str, remedy: str) -> None:
    with pytest.raises(BadSettings, match=f"lora: {remedy}"):
        loras.read([said])


async def test_over_http_the_log_has_digest_and_strength(file: Path) -> None:
    body = {"model": "toy", "prompt": "a count", "loras": loras.read([f"{file}:0.5"])}
    async with (
        World(families=(TAKES_LORAS,)).engine(workers=0) as running,
        without_sockets(app_of(running)) as http,
    ):
        answer = await http.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        job = answer.json()
        [submitted, *_] = (await http.get(f"/v1/jobs/{job['id']}/events")).json()["data"]

    digest = lora.file("", FILE).ref.digest
    assert job["loras"] == [{"digest": digest, "strength": 0.5}] == loras.as_shown(body)["loras"]
    assert submitted["data"]["request"]["loras"] == job["loras"]
    assert submitted["data"]["inputs"]["lora/0"]["digest"] == digest


@pytest.mark.parametrize(
    ("one", "param"),
    [
        ({"data": base64.b64encode(b"no").decode()}, "loras/0"),
        ({"data": base64.b64encode(FILE).decode(), "strength": 1e999}, None),
        ({"data": "?"}, "loras"),
    ],
)
async def test_over_http_the_wrong_one_is_named(one: dict[str, object], param: str | None) -> None:
    async with (
        World(families=(TAKES_LORAS,)).engine(workers=0) as running,
        without_sockets(app_of(running)) as http,
    ):
        content = msgspec.json.encode({"model": "toy", "prompt": "a count", "loras": [one]})
        if param is None:
            content = content.replace(b"null", b"1e999")
        answer = await refused(http, content)

    assert answer.status_code in (400, 422), answer.text
    if param is not None:
        assert answer.json()["error"]["param"].startswith(param), answer.text


async def refused(http: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await http.post("/v1/jobs", content=content, headers={"content-type": "application/json"})


def test_a_tensor_of_bytes_holds_the_file() -> None:
    given = lora.file("", FILE)

    assert given.ref.shape == (len(FILE),)
    assert given.data.endswith(np.frombuffer(FILE, np.uint8).tobytes())
