"""What the tests of the store may ask for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.disks import mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Eight MiB that are a disk of their own."""
    with mounted(tmp_path, 8 * 1024 * 1024) as done:
        if not done:
            pytest.skip("may not mount")
        yield tmp_path
