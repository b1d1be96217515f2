"""One thread: the modules are so small that two spend their time waiting for each other."""

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
