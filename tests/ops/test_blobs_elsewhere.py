"""An engine whose blobs lie in a bucket."""

from pathlib import Path

import pytest

from store.blobs import open_blobs
from tests.processes import engine, run, until
from tests.s3 import new_bucket, variables


@pytest.mark.slow
def test_a_job_goes_on_from_a_bucket_after_all_was_killed(
    tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables(s3).items():
        monkeypatch.setenv(name, value)
    url = f"s3://{new_bucket(s3)}/blobs"
    with engine(tmp_path, blobs=url) as running:
        job = running.submit("a count big=70000 sleep=0.1", steps=12)
        until(lambda: ("count", 4) in running.steps(job), "some steps")
        running.kill_tree()
    assert not (tmp_path / "blobs").exists()

    with engine(tmp_path, blobs=url) as running:
        assert running.ended(job)["status"] == "completed"
        steps = running.steps(job)
        assert len(steps) == len(set(steps)) == 14
    assert sum(1 for _ in open_blobs(url).listing(0)) >= 12


def test_an_address_that_names_no_store_is_one_clear_line(tmp_path: Path) -> None:
    ended = run("engine", "serve", "--data", tmp_path, "--blobs", "gopher://hole", "--port", "0")

    assert ended.returncode == 2
    assert ended.stderr.strip() == "error: gopher://hole: blobs lie in a folder or at s3://bucket/prefix"
