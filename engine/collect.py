"""What may be forgotten: steps that retention lets go of, jobs that are old, and the bytes that nothing names any more.

Mark and sweep. The mark folds the logs; the sweep takes what is not marked and has not been touched for longer than
the grace. Whoever comes to rely on old bytes again (a fork, a step that makes the same tensor) touches them first.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import anyio.to_thread
from msgspec import Struct

from cards.registry import Families
from engine import course
from engine import events as facts
from engine.actor import Saved, restore, stream
from engine.audit import sound_log
from engine.clock import Clock
from engine.errors import BlobsHeld, BlobsShared, CannotCollect, EngineError
from engine.events import JobEvent, StepCompleted, made
from engine.job import Job
from engine.needs import needs
from store.blobs import Blobs, Swept, holds, tenants
from store.errors import StoreError, StreamConflict
from store.journal import JobFilter, Journal, Loaded

log = logging.getLogger("keyframe.collect")

PAGE = 200


class Retention(Struct, frozen=True, kw_only=True):
    """What stays, and for how long after a job's end. Artifacts and digests stay as long as their job.

    Of each job's steps the last `steps_last` and every `steps_every`-th (0: none) can be forked from, until `steps_s`
    after its end; those that are pinned for as long as their job. Finished jobs go `purge_s` after their end, and the
    oldest of more than `purge_over` at once.
    """

    steps_last: int = 2
    steps_every: int = 10
    steps_s: float = 86_400.0
    purge_s: float | None = None
    purge_over: int | None = None
    grace_s: float = 3_600.0

    def keeps(self, step: int, steps: int) -> bool:
        """Whether the state after `step` of `steps` completed steps is one to go on from."""
        return step > steps - self.steps_last or (self.steps_every > 0 and step % self.steps_every == 0)


class Collected(Struct, frozen=True, kw_only=True):
    """What went, or would go: jobs by id, and bytes that nothing names."""

    purged: tuple[str, ...]
    inline: Swept
    stored: Swept
    live: int


async def collect(
    journal: Journal,
    blobs: Blobs,
    registry: Families,
    retention: Retention,
    *,
    now: float,
    dry_run: bool,
    take_over: bool = False,
    progress: Callable[[str], None] = lambda what: None,
) -> Collected:
    """Nothing is taken of which it is not known whether a log names it.

    Raises CannotCollect if a log cannot be read, BlobsShared if there are those of other stores: with `take_over` these
    are gone for good. BlobsHeld while somebody reads blobs that may go.
    """
    mine = await journal.identity()
    await anyio.to_thread.run_sync(partial(_be_alone, blobs, mine, dry_run=dry_run, take_over=take_over))
    await anyio.to_thread.run_sync(partial(_check_holds, blobs, now, dry_run=dry_run))
    progress("looking for old jobs")
    old = [job async for job in _old(journal, retention, now)]
    going = old if dry_run else [job for job in old if await purge(journal, job)]
    if not dry_run:
        for cut_off in await journal.purging():
            with suppress(StreamConflict):  # whoever began it has ended it meanwhile
                await journal.purge(cut_off, expected=-1, epoch=-1)
    progress("marking")
    live = await mark(journal, registry, retention, now=now, without=frozenset(going))
    progress("sweeping")
    await anyio.to_thread.run_sync(partial(_check_holds, blobs, now, dry_run=dry_run))  # marking takes its time
    inline = await _sweep_inline(journal, live, retention.grace_s, dry_run=dry_run)
    sweep = partial(blobs.sweep, live, grace_s=retention.grace_s, now=now, dry_run=dry_run)
    stored = await anyio.to_thread.run_sync(sweep)
    return Collected(purged=tuple(going), inline=inline, stored=stored, live=len(live))


def _be_alone(blobs: Blobs, journal: str, *, dry_run: bool, take_over: bool) -> None:
    """Raises BlobsShared."""
    if not dry_run:
        tenants.move_in(blobs, journal)  # also if it is refused now: the others are to be, too
    others = tenants.others(blobs, journal)
    if others and not take_over:
        raise BlobsShared(others)
    if not dry_run:
        for other in others:
            tenants.move_out(blobs, other)


def _check_holds(blobs: Blobs, now: float, *, dry_run: bool) -> None:
    """Raises BlobsHeld."""
    if dry_run:
        return
    if (left_s := holds.held_until(blobs) - now) > 0:
        raise BlobsHeld(left_s)
    holds.forget_ended(blobs, now)


async def keep_collecting(
    collect: Callable[[], Awaitable[Collected]], ours: Callable[[], Awaitable[bool]], clock: Clock, every_s: float
) -> None:
    """For ever, now and then; `ours` says whether it is for this engine to do."""
    while True:
        await clock.sleep(every_s)
        try:
            if await ours():
                done = await collect()
                log.info("forgot %d jobs, %d and %d blobs", len(done.purged), done.inline.blobs, done.stored.blobs)
        except (EngineError, StoreError) as error:
            log.warning("cannot collect now: %s", error)


async def purge(journal: Journal, job_id: str) -> bool:
    """Forget a job that has ended. Whether it had, and nobody changed it meanwhile."""
    loaded = await journal.load(stream(job_id))
    if loaded is None or not restore(loaded).job.terminal:
        return False
    try:
        await journal.purge(stream(job_id), expected=loaded.version, epoch=loaded.epoch)
    except StreamConflict:
        return False
    return True


async def mark(
    journal: Journal, registry: Families, retention: Retention, *, now: float, without: frozenset[str] = frozenset()
) -> set[str]:
    """The digests of all bytes that are to stay. Raises CannotCollect."""
    live: set[str] = set()
    async for job_id, loaded in _heads(journal):
        if job_id not in without:
            try:
                live |= await _marked(journal, registry, retention, now, loaded)
            except EngineError as error:
                raise CannotCollect(job_id, str(error)) from error
    return live


async def _marked(journal: Journal, registry: Families, retention: Retention, now: float, loaded: Loaded) -> set[str]:
    saved = restore(loaded)
    live = set(_of_now(saved))
    over = saved.job.terminal and await _ended_before(journal, saved.job, now - retention.steps_s)
    if over and not saved.job.pins:
        return live
    log = [facts.decode(event) for event in await sound_log(journal, saved.job.id)]
    family = registry.get(saved.job.model.name)
    if family is None or family.card.digest != saved.job.model.card:  # nobody here can say which of them a step needs
        return live | _all(log)
    states = list(course.walk(log, family))
    for step, walked in enumerate(states):
        if step in saved.job.pins or (not over and retention.keeps(step, len(states) - 1)):
            live.update(needs(walked.job, walked.state, walked.refolds))
            live.update(walked.job.lasting)
    return live


def _of_now(saved: Saved) -> Iterator[str]:
    yield from needs(saved.job, saved.state, saved.refolds)
    yield from saved.job.lasting


def _all(log: Sequence[JobEvent]) -> set[str]:
    return {digest for event in log if isinstance(event, StepCompleted) for digest in made(event)}


async def _ended_before(journal: Journal, job: Job, when: float) -> bool:
    rows = await journal.jobs(JobFilter(prefix=job.id, updated_before=when), limit=PAGE)
    return any(row.id == job.id for row in rows)


async def _heads(journal: Journal) -> AsyncIterator[tuple[str, Loaded]]:
    """All jobs. By the names of their streams: a page of the job list would end early if its cursor were purged."""
    after = ""
    while page := await journal.streams(stream(""), after=after, limit=PAGE):
        after = page[-1]
        for name, loaded in (await journal.load_many(page)).items():
            yield name.removeprefix(stream("")), loaded


async def _old(journal: Journal, retention: Retention, now: float) -> AsyncIterator[str]:
    """The finished jobs that are to go, the newest first."""
    if retention.purge_s is None and retention.purge_over is None:
        return
    finished = 0
    after = None
    while page := await journal.jobs(JobFilter(open=False), after=after, limit=PAGE):
        after = page[-1].id
        for row in page:
            if row.status not in ENDED:
                continue
            finished += 1
            over = retention.purge_over is not None and finished > retention.purge_over
            aged = retention.purge_s is not None and row.updated_at < now - retention.purge_s
            if over or aged:
                yield row.id


ENDED = frozenset({"completed", "failed", "cancelled", "moved"})
"""As the list of jobs has it."""


async def _sweep_inline(journal: Journal, live: set[str], grace_s: float, *, dry_run: bool) -> Swept:
    count = nbytes = 0
    after = ""
    while page := await journal.inline_blobs(after=after):
        after = page[-1].digest
        going = [blob for blob in page if blob.digest not in live and blob.age_s > grace_s]
        if going and not dry_run:
            await journal.drop_blobs([blob.digest for blob in going], grace_s=grace_s)
        count += len(going)
        nbytes += sum(blob.nbytes for blob in going)
    return Swept(count, nbytes)
