"""Sleep and wake of a real worker: its memory comes back, and a job that needs what sleeps has the bits of one that did
not wait."""

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from cards.model import Model
from ops.models import put
from ops.settings import Settings
from tests.parity import tiny
from tests.processes import SHAPES, EngineProcess, engine, until, workers_of

pytestmark = pytest.mark.slow

ASKED = {"model": "shapes", "steps": 2, "seed": 7}


def wide(folder: Path) -> Path:
    """A Wan whose transformer is 51 MB in bfloat16, unlike its files: what is as it is stored is only mapped."""
    from diffusers import WanPipeline

    torch.manual_seed(0)
    transformer = tiny.wan_transformer(num_attention_heads=16, attention_head_dim=64, ffn_dim=4096, num_layers=1)
    parts = tiny.tokenizer(), tiny.text_encoder(), tiny.wan_vae(), tiny.unipc(), transformer
    WanPipeline(*parts).save_pretrained(folder)
    return folder


def seen(running: EngineProcess) -> Any:
    [worker] = running.http.get("/v1/workers").json()["data"]
    return worker


def told(running: EngineProcess, verb: str, **asked: Any) -> int:
    """Have it sleep or wake, wait until it has, and return its resident bytes."""
    worker = seen(running)
    answer = running.http.post(f"/v1/workers/{worker['id']}/{verb}", json=asked)
    assert answer.status_code == 202, answer.text
    named = {name for name in answer.json()["components"] if name in worker["weights"]}
    left = (lambda there: named & there) if verb == "sleep" else (lambda there: named - there)
    until(lambda: not left({*seen(running)["resident"]}), f"the worker to {verb}")
    [pid] = workers_of(running)
    return int(psutil.Process(pid).memory_info().rss)


def made(running: EngineProcess) -> Any:
    job = running.submit("a red circle", **ASKED)
    assert running.ended(job)["status"] == "completed"
    return [(one["loop"], one["step"], one["tensors"]) for one in running.checkpoints(job)]


def test_memory_comes_back_and_a_job_wakes_what_it_needs(tmp_path: Path) -> None:
    put(
        Settings(data=tmp_path),
        Model(name="wide", folder=str(wide(tmp_path / "checkpoint")), precision="bfloat16"),
        replace=False,
    )
    with engine(tmp_path, families=SHAPES) as running:
        awake_first = made(running)
        told(running, "wake")
        asleep = told(running, "sleep")
        awake = told(running, "wake", models=["wide"])
        half = told(running, "sleep", models=["wide"], components=["text_encoder", "vae"])
        asleep_again = told(running, "sleep", components=["transformer"])

        weights = {name: one["nbytes"] for name, one in seen(running)["weights"].items()}
        assert weights["wide/transformer"] > 50e6
        assert awake - asleep > 0.9 * weights["wide/transformer"]
        assert half - asleep_again > 0.9 * weights["wide/transformer"]
        assert abs(asleep_again - asleep) < 0.1 * weights["wide/transformer"]
        assert made(running) == awake_first
        assert {"shapes/transformer", "shapes/vae"} <= {*seen(running)["resident"]}
