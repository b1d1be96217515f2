"""Parity as operators measure it: a registered checkpoint, a real worker process, what is found goes into the log."""

from pathlib import Path

import msgspec
import pytest

from cards.model import Model
from engine.parity import measured
from ops.errors import OpsError
from ops.models import FILE
from ops.parity import measure
from ops.settings import Settings
from store.open import open_journal
from tests.parity import tiny

REQUEST = {"prompt": "a cat", "seed": 3, "steps": 3, "size": "48x32", "frames": 9}


def settings(data: Path) -> Settings:
    (data / FILE).write_bytes(msgspec.json.encode([Model(name="tiny", folder=str(tiny.wan()))]))
    return Settings(data=data, port=0, threads=1)


@pytest.mark.slow
async def test_what_is_measured_of_a_model_stays_in_the_log(tmp_path: Path) -> None:
    found = await measure(settings(tmp_path), "tiny", REQUEST)

    assert found.outputs == dict.fromkeys(("denoise.latent", *(f"decode.frames/{n}" for n in range(3))), True)
    assert (found.equal, found.rung, found.reference) == (True, "C1", "diffusers.WanPipeline")
    async with open_journal(settings(tmp_path).store_url) as journal:
        assert await measured(journal, "tiny") == [found]


@pytest.mark.slow
async def test_a_model_without_a_reference_says_so(tmp_path: Path) -> None:
    with pytest.raises(OpsError, match="has no reference that runs here"):
        await measure(settings(tmp_path), "shapes", {"prompt": "a red circle"})
