"""`engine-admin replay`: logs executed again. Exits with 1 at a difference."""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from cards.errors import CardError
from engine.check import rows
from engine.errors import EngineError
from engine.replay import Difference, Verdict
from ops.admin.parser import command, whole
from ops.admin.selection import ENDED
from ops.errors import BadSettings
from ops.replay import Progress, diff_jobs, verify_bundle, verify_job
from ops.settings import Settings
from ops.tables import note, show_json
from store.journal import JobFilter
from store.open import open_journal


def add(replay: Any) -> None:
    verify = command(replay, "verify", _verify, "execute a job's log again and compare every byte")
    verify.add_argument("job", nargs="?")
    verify.add_argument("--all", action="store_true", help="all jobs that have ended")
    verify.add_argument("--corpus", type=Path, metavar="DIR", help="all bundles in a folder, in no store")
    verify.add_argument("--from-step", type=whole, default=0, metavar="K", help="take the first K as the log has them")
    parting = command(replay, "diff", _diff, "the first step at which two jobs part")
    parting.add_argument("ours")
    parting.add_argument("theirs")


async def _verify(arguments: argparse.Namespace, settings: Settings) -> int:
    if sum((arguments.job is not None, arguments.all, arguments.corpus is not None)) != 1:
        raise BadSettings("job: give an id, or --all, or --corpus")
    jobs = await _wanted(arguments, settings)
    told: list[dict[str, Any]] = []
    with Console(stderr=True).status("loading") as status:
        for job in jobs:
            progress = functools.partial(_progress, status, str(job))
            try:
                verdict, changes = await _verify_one(settings, job, progress, arguments.from_step)
            except (EngineError, CardError) as error:
                if arguments.job is not None:
                    raise
                note(f"error: {error}")  # and on with the others
                told.append({"verdict": None, "equal": False, "changes": [], "error": str(error)})
                continue
            told.append({"verdict": verdict, "equal": verdict.equal, "changes": changes})
            if not arguments.json:
                _say(verdict, changes)
    if arguments.json:
        show_json(told if arguments.job is None else told[0])
    elif arguments.job is None:
        note(_summary(told))
    return 0 if all(one["equal"] for one in told) else 1


async def _verify_one(
    settings: Settings, job: str | Path, progress: Progress, from_step: int
) -> tuple[Verdict, list[str]]:
    if isinstance(job, Path):
        return await verify_bundle(settings, job, progress, from_step=from_step)
    return await verify_job(settings, job, progress, from_step=from_step)


async def _wanted(arguments: argparse.Namespace, settings: Settings) -> Sequence[str | Path]:
    """Raises BadSettings."""
    if arguments.corpus is None:
        return [arguments.job] if arguments.job is not None else await _ended(settings)
    bundles = sorted(arguments.corpus.glob("*.tar"))
    if not bundles:
        raise BadSettings(f"corpus: there is no bundle (*.tar) in {arguments.corpus}")
    return bundles


async def _diff(arguments: argparse.Namespace, settings: Settings) -> int:
    difference = await diff_jobs(settings, arguments.ours, arguments.theirs)
    if arguments.json:
        show_json({"equal": difference is None, "difference": difference})
    elif difference is None:
        print("equal: the same steps with the same bytes")
    else:
        print(f"part at {_place(difference)}\n  {arguments.ours}  {difference.logged}")
        print(f"  {arguments.theirs}  {difference.found}")
    return 0 if difference is None else 1


def _summary(told: list[dict[str, Any]]) -> str:
    unsound = sum(one["verdict"] is None for one in told)
    differ = sum(not one["equal"] for one in told) - unsound
    also = f", {unsound} could not be verified" if unsound else ""
    return f"{len(told)} jobs, {differ} of them differ{also}"


def _progress(status: Status, job: str, node: str, step: int) -> None:
    status.update(f"executing {job} {node} {step}")


async def _ended(settings: Settings) -> list[str]:
    async with open_journal(settings.store_url, writable=False) as journal:
        return [row.id async for row in rows(journal, JobFilter()) if row.status in ENDED]


def _say(verdict: Verdict, changes: list[str]) -> None:
    for change in changes:
        print(f"note: {change}")
    if verdict.pruned:
        print(f"note: the bytes of {verdict.pruned} tensors are not stored any more; they were only made again")
    print(_sentence(verdict.job, verdict.steps, verdict.tensors, verdict.difference))


def _sentence(job: str, steps: int, tensors: int, difference: Difference | None) -> str:
    if difference is None:
        return f"equal: {steps} steps of {job} executed again, {tensors} tensors with the digests in the log"
    return f"differs at {_place(difference)}\n  log   {difference.logged}\n  found {difference.found}"


def _place(difference: Difference) -> str:
    return f"{difference.node} step {difference.step}, {difference.what}: {difference.problem}"
