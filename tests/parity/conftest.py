"""What the parity tests may ask for."""

import pytest
import torch

from tests.parity import every_card
from tests.parity.reference import Digests


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The modules are so small that two spend their time waiting for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def made_once() -> dict[str, Digests]:
    """What `unbroken` holds for as long as the session lasts: an asynchronous fixture would hold the event loop."""
    return {}


@pytest.fixture
async def unbroken(one_thread: None, made_once: dict[str, Digests]) -> dict[str, Digests]:
    """By model of every_card, what its job makes: one job after the other, on one worker."""
    if not made_once:
        async with every_card.world().engine() as running:
            made_once |= {model: await every_card.alone(running, model) for model in every_card.REQUESTS}
    return made_once
