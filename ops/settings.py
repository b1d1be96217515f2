"""All settings, read once: flags over environment (KEYFRAME_*) over a TOML file over the defaults here."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta, Struct

from cards import parallel
from cards.errors import BadExtension, BadPlan
from cards.extensions import observers
from cards.parallel import ParallelPlan
from cards.registry import DEFAULT_FAMILIES
from cards.roles import ROLES, Role
from engine.collect import Retention
from engine.scheduling.policy import DEFAULT, POLICIES
from engine.scheduling.scheduler import Limits
from engine.settings import MAX_ACTIVE
from ops.errors import BadSettings
from store.database import Durability

PREFIX = "KEYFRAME_"

Count = Annotated[int, Meta(ge=1, le=1024)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0)]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine and the workers it starts. Each field is a variable (KEYFRAME_MAX_ACTIVE), most are flags too."""

    data: Path = Path("data")
    """Folder of the store, the blobs and the engine's lock."""
    store: str | None = None
    """Store URL; a SQLite file in the data folder if left out."""
    blobs: str | None = None
    """Where large tensors and artifacts lie: a folder, or s3://bucket/prefix; in the data folder if left out."""
    durability: Durability = "power"
    """What an acknowledged append survives: a power cut, or with "process" only the end of the engine's process."""
    host: str = "127.0.0.1"
    port: Port = 8000
    """0 takes a free one."""
    advertise: str | None = None
    """The URL at which others reach this engine, if it is not that of host and port."""
    workers: Annotated[int, Meta(ge=0, le=1024)] = 1
    """Worker processes to start and keep alive; 0 if all come from elsewhere."""
    split: dict[Role, Annotated[int, Meta(ge=0, le=1024)]] = {}
    """So many workers for each role instead, as encoder=1,denoiser=2,decoder=1."""
    ranks: Count = 1
    """Ranks of each of these workers."""
    parallel: str | None = None
    """What ranks share of a step, as cfg=2, ulysses=2 or cfg=2,ulysses=2: branches of guidance, tokens of forwards."""
    rank_timeout_s: Seconds = 60.0
    """How long a rank of a worker waits for another before it gives the pool up."""
    device: Annotated[str, Meta(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")] = "auto"
    """Where its workers compute: cpu, cuda, cuda:1, or auto, a GPU if there is one. Each rank takes one, in order."""
    threads: Count = max(1, (os.cpu_count() or 2) // 2)
    """Threads that each rank computes with. Outputs do not depend on it."""
    weights_bytes: Annotated[int, Meta(ge=1)] | None = None
    """Of components that each rank has loaded at once; its memory if left out. What is used least goes first."""
    compile: bool = False
    """Whether blocks of transformers are compiled: other bits than without, and faster once that is done."""
    listen_workers: str | None = None
    """ZeroMQ address for workers from elsewhere, such as tcp://10.0.0.1:7000; a private socket if left out."""
    listen_transfers: Annotated[str, Meta(pattern="^tcp://")] | None = None
    """ZeroMQ address at which a worker gives tensors to those on other machines, such as tcp://10.0.0.2:*."""
    pool: str = "default"
    serves: tuple[Role, ...] = ()
    """The roles of a worker that is started by itself: encoder, denoiser, decoder; all if left out."""
    memory_gib: Annotated[float, Meta(ge=0.001, le=1_000_000)] | None = None
    """What each of these workers has for weights, tensors and steps; left out, all that its GPU has, or an equal
    part of the machine's memory for each rank.
    """
    families: tuple[str, ...] = DEFAULT_FAMILIES
    """Modules of model families."""
    extensions: tuple[str, ...] = ()
    """What looks at the steps of its workers: nan_watch, profiler, taps:MODULE, record:FOLDER, align:FOLDER."""
    max_active: Count = MAX_ACTIVE
    """Jobs that are driven at once. The policy decides among these; the others wait by priority, then by age."""
    policy: str = DEFAULT
    """In which order steps that are ready run: docs/scheduling.md says what each is for."""
    batch_most: Annotated[int, Meta(ge=1, le=64)] = 4
    """Steps of different jobs that are executed together, where their model says that it changes no bits."""
    batch_wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """How long a step waits for others to be executed with."""
    max_deaths: Count = 3
    silent_s: Seconds = 5.0
    """A worker that says nothing for this long has lost its work."""
    lease_s: Annotated[float, Meta(ge=1)] = 10.0
    """How long after an engine's last sign another one may take its jobs, where they share a PostgreSQL database."""
    cancel_grace_s: Seconds = 30.0
    stall_s: Seconds = 120.0
    grace_s: Seconds = 30.0
    """How long running steps may take to end when the engine is told to stop."""
    gc_every_s: Annotated[float, Meta(ge=0)] = 3600.0
    """How often an engine forgets what is old and what nothing names; 0 leaves it to `engine-admin gc run`."""
    gc_grace_s: Annotated[float, Meta(ge=60)] = 3600.0
    """Bytes that nothing names stay for this long: longer than any step takes from storing to telling."""
    keep_steps: Annotated[int, Meta(ge=1)] = 2
    """The last steps of each job that can be forked from, besides every `keep_every`-th."""
    keep_every: Annotated[int, Meta(ge=0)] = 10
    keep_steps_s: Annotated[float, Meta(ge=0)] = 86_400.0
    """How long after a job's end its steps stay. Artifacts and digests stay with the job."""
    purge_after_s: Annotated[float, Meta(gt=0)] | None = None
    """Finished jobs are forgotten this long after their end; left out, they stay."""
    purge_over: Annotated[int, Meta(ge=0)] | None = None
    """The oldest of more finished jobs than these are forgotten."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @property
    def limits(self) -> Limits:
        return Limits(batch_most=self.batch_most, batch_wait_s=self.batch_wait_s)

    @property
    def slots(self) -> tuple[tuple[Role, ...], ...]:
        """What each of its workers serves."""
        split = tuple((role,) for role in ROLES for _ in range(self.split.get(role, 0)))
        return split if self.split else (self.serves,) * self.workers

    @property
    def retention(self) -> Retention:
        return Retention(
            steps_last=self.keep_steps,
            steps_every=self.keep_every,
            steps_s=self.keep_steps_s,
            purge_s=self.purge_after_s,
            purge_over=self.purge_over,
            grace_s=self.gc_grace_s,
        )

    @property
    def plan(self) -> ParallelPlan | None:
        """Raises BadPlan."""
        return None if self.parallel is None else parallel.parse(self.parallel)

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{quote(str(self.data.absolute() / 'keyframe.db'))}"

    @property
    def store_file(self) -> Path | None:
        """The SQLite file, by whatever name it was given; None for another kind of store."""
        scheme, _, path = self.store_url.partition(":///")
        return Path(unquote(path)).resolve() if scheme == "sqlite" else None

    @property
    def store_name(self) -> str:
        """One store, one name."""
        return str(self.store_file or self.store_url)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where an engine of this store may have left word."""
        return (self.data, self.store_file.parent) if self.store_file else (self.data,)

    @property
    def blobs_url(self) -> str:
        return self.blobs or str(self.data / "blobs")


def read(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Settings:
    """`flags` holds what was given on the command line. Raises BadSettings, which names the entry and where it is."""
    entries = _from_file(file) if file is not None else {}
    entries |= _from_environment(environ)
    entries |= {name: value for name, value in flags.items() if value is not None}
    for listed in ("families", "extensions", "serves"):
        if isinstance(entries.get(listed), str):
            entries[listed] = [name for name in entries[listed].split(",") if name]
    if isinstance(split := entries.get("split"), str):
        entries["split"] = dict(map(_share, filter(None, split.split(","))))
    if isinstance(serves := entries.get("serves"), list):
        for unknown in [role for role in serves if role not in ROLES]:
            raise BadSettings(f"serves: {unknown!r} is no role; there are: {', '.join(ROLES)}")
    try:
        settings = msgspec.convert(entries, Settings, strict=False, dec_hook=_path)
        observers.check(settings.extensions)
        _check_policy(settings)
        _check_ranks(settings)
        return settings
    except (BadExtension, BadPlan) as error:
        raise BadSettings(str(error)) from error
    except msgspec.ValidationError as error:
        raise BadSettings(f"bad setting: {error}") from error


def _share(entry: str) -> tuple[str, str]:
    role, _, count = entry.partition("=")
    if role not in ROLES or not count.isdecimal():
        example = ",".join(f"{role}=1" for role in ROLES)
        raise BadSettings(f"split: {entry!r} is not ROLE=WORKERS; all roles: {example}")
    return role, count


def _check_policy(settings: Settings) -> None:
    if settings.policy not in POLICIES:
        raise BadSettings(f"policy: {settings.policy!r} is none; there are: {', '.join(POLICIES)}")


def _check_ranks(settings: Settings) -> None:
    if settings.plan is not None:
        parallel.check_ranks(settings.plan, settings.ranks)
    if settings.compile and settings.ranks > 1:
        raise BadSettings(f"compile: is for 1 rank and there are {settings.ranks}; leave it out, or set ranks to 1")


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    entries = {name.removeprefix(PREFIX).lower(): value for name, value in environ.items() if name.startswith(PREFIX)}
    if unknown := set(entries) - set(_names()):
        name = f"{PREFIX}{sorted(unknown)[0].upper()}"
        raise BadSettings(f"the environment has an unknown setting {name}; there are: {', '.join(_names())}")
    return entries


def _path(kind: type, value: object) -> Path:
    return Path(str(value))


def _from_file(file: Path) -> dict[str, Any]:
    try:
        entries = tomllib.loads(file.read_text())
    except OSError as error:
        raise BadSettings(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{file} is not TOML: {error}") from error
    if unknown := set(entries) - set(_names()):
        raise BadSettings(f"{file}: unknown setting {sorted(unknown)[0]!r}; there are: {', '.join(_names())}")
    return entries


def _names() -> tuple[str, ...]:
    return Settings.__struct_fields__
