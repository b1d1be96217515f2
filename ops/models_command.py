"""`engine models`: checkpoint directories under names, for people. Nothing is ever downloaded."""

import argparse
import functools
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import anyio
from msgspec import to_builtins
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from cards import checkpoint, registry
from cards.card import Precision
from cards.checkpoint import Checkpoint, Told
from cards.errors import BadCheckpoint
from cards.family import Family
from cards.model import Model
from cards.request import GenerationRequest, resolve
from engine.plan import plan
from ops import asked, checked, models, models_shown, parity, plan_shown
from ops.cli import settings_flags, settings_from
from ops.errors import BadSettings, OpsError
from ops.settings import Settings
from ops.tables import note, readable, show, show_json, show_one

T = TypeVar("T")

Run = Callable[[argparse.Namespace, Settings], None]

AT_START = "running engines and workers read models.json at their start: restart them to serve {name}"

RATES = (1e-6, 1e9)
"""Of `--tflops`: from one operation in a microsecond to more than all there are."""


class Differs(OpsError):
    """A checkpoint that is not what was registered."""


def add(commands: Any) -> None:
    what = "register checkpoint directories, and look at them"
    group = commands.add_parser("models", help=what, description=what).add_subparsers(required=True, metavar="COMMAND")
    new = _command(group, "add", _add, "check a checkpoint directory and register it under a name")
    new.add_argument("name")
    new.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="as `save_pretrained` of a diffusers pipeline wrote it; none for a workflow: options name its stages",
    )
    new.add_argument("--precision", choices=get_args(Precision), help="of the modules (default: as stored)")
    new.add_argument(
        "--option", type=option, action="append", default=[], metavar="KEY=VALUE", help="as solver=flow_unipc"
    )
    new.add_argument("--replace", action="store_true", help="register a name again")
    _command(group, "list", _list, "the registered checkpoints")
    for name, run, what in (
        ("show", _show, "a model's card, identity and place"),
        ("check", _check, "read all files again and compare them with what was registered"),
        ("remove", _remove, "forget a registration; no file of the checkpoint is touched"),
    ):
        _command(group, name, run, what).add_argument("name")
    compared = _command(group, "parity", _parity, "run one job and the reference beside it, and log what was equal")
    compared.add_argument("name")
    compared.add_argument("--prompt", default="a cat and a dog baking a cake together in a kitchen")
    asked.flags(compared)
    planned = _command(group, "plan", _plan, "what a job would take: bytes, work and time, without loading weights")
    planned.add_argument("name")
    planned.add_argument("--size", metavar="WxH")
    planned.add_argument("--frames", type=int, metavar="N")
    planned.add_argument("--steps", type=int, metavar="N")
    planned.add_argument("--guidance", type=float, metavar="X")
    prior = f"default {plan_shown.TFLOPS}, a prior: two cores of a CPU"
    what = f"what the device sustains in a second, in 10^12 operations ({prior})"
    planned.add_argument("--tflops", type=rate, metavar="X", help=what)


def rate(text: str) -> float:
    least, most = RATES
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no number from {least:g} to {most:g}")
    return value


def option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not KEY=VALUE")
    return key, value


def _command(group: Any, name: str, run: Run, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = group.add_parser(name, help=what, description=what)
    parser.add_argument("--json", action="store_true", help="for programs")
    settings_flags(parser, "data", "families")

    def with_settings(arguments: argparse.Namespace) -> None:
        with _readable():
            run(arguments, settings_from(arguments))

    parser.set_defaults(run=with_settings)
    return parser


def _add(arguments: argparse.Namespace, settings: Settings) -> None:
    models.check_name(settings, arguments.name, replace=arguments.replace)
    options = asked.once("option", arguments.option)
    if arguments.folder is None:
        if arguments.precision:
            raise BadSettings("precision: a workflow has that of its stages; leave it out, or name a DIR")
        if not options:
            raise BadSettings("DIR: name a checkpoint directory, or the stages of a workflow by --option")
        _add_workflow(Model(name=arguments.name, folder="", options=options), arguments, settings)
        return
    model = Model(
        name=arguments.name,
        folder=str(arguments.folder.absolute()),
        precision=arguments.precision,
        options=options,
    )
    found, family = _opened(model)
    about = models_shown.directory(found)
    if not arguments.json:
        _show_all(about, "components")
    model = replace(model, files=_with_bar(found.nbytes, lambda told: found.stamps(told=told)))
    models.put(settings, model, replace=arguments.replace)
    identity = models_shown.identity(model, family)
    if arguments.json:
        show_json({"name": model.name, **identity, "folder": model.folder, **about})
    else:
        print()
        show_one({"registered": model.name, **identity}, as_json=False)
    note(AT_START.format(name=model.name))


def _opened(model: Model) -> tuple[Checkpoint, Family]:
    """A directory and what its card makes of it, checked as at an engine's start. Raises BadSettings, InvalidCard."""
    try:
        return checkpoint.read(model.root), registry.open_model(model)
    except BadCheckpoint as error:
        raise BadSettings(f"DIR: {error}") from error


def _add_workflow(model: Model, arguments: argparse.Namespace, settings: Settings) -> None:
    there = [other for other in models.read_models(settings) if other.name != model.name]
    family = registry.open_model(model, registry.load((), there))
    models.put(settings, model, replace=arguments.replace)
    facts = {"registered": model.name, "card": family.card.digest, "weights": family.weights_digest()}
    show_one(facts, as_json=arguments.json)
    note(AT_START.format(name=model.name))


def _list(arguments: argparse.Namespace, settings: Settings) -> None:
    there = models.read_models(settings)
    families = registry.load((), there)
    rows = []
    for model in there:
        family = families.get(model.name)
        found = _found(model) if family else None
        rows.append(models_shown.row(model, found, family, families.unusable.get(model.name)))
    show(rows if arguments.json else list(map(readable, rows)), as_json=arguments.json)


def _show_all(facts: dict[str, Any], *tables: str) -> None:
    """For people: what is one thing first, then what is many."""
    show_one(readable({name: value for name, value in facts.items() if name not in tables}), as_json=False)
    for name in tables:
        print()
        show(list(map(readable, facts[name])), as_json=False)


def _show(arguments: argparse.Namespace, settings: Settings) -> None:
    families = models.families_of(settings)
    own = arguments.name in registry.load(settings.families)
    model = Model(name=arguments.name, folder="") if own else models.named(settings, arguments.name)
    if model.name in families.unusable:
        show_one(models_shown.unusable(model, families.unusable[model.name]), as_json=arguments.json)
        return
    found, family = _found(model), families[model.name]
    facts = models_shown.model(model, found, family)
    measured = anyio.run(parity.known, settings, registry.identity(family))
    if arguments.json:
        show_json(facts | {"measured": models_shown.measured(measured)})
        return
    _show_all(facts | {"measured": models_shown.in_words(measured)}, *(("components",) if found else ()), "loops")


def _parity(arguments: argparse.Namespace, settings: Settings) -> None:
    """Raises Differs if an output has other bytes."""
    found = anyio.run(parity.measure, settings, arguments.name, asked.request(arguments), asked.image(arguments))
    rows = [{"output": name, "equal": equal} for name, equal in found.outputs.items()]
    show(rows, as_json=arguments.json)
    if not found.equal:
        first, *others = (name for name, equal in found.outputs.items() if not equal)
        differ = f"{first} and {len(others)} more differ" if others else f"{first} differs"
        raise Differs(f"{found.model.name} is not {found.reference} here: {differ} (job {found.job})")
    note(f"{found.rung}: the same bytes as {found.reference}; in the log of job {found.job} and of the model")


def _check(arguments: argparse.Namespace, settings: Settings) -> None:
    """Raises Differs, once it has shown which files do; UnusableModel if none does and it cannot be opened."""
    model = _directory(settings, arguments.name)
    names, wrong = checked.to_look_at(model)
    found = _with_bar(checked.nbytes(model, names), functools.partial(checked.look, model, names, wrong))
    show([to_builtins(one) for one in found], as_json=arguments.json)
    if differ := checked.differ(model, found):
        remedy = f"restore it, or register what is there: engine models add {model.name} {model.folder} --replace"
        raise Differs(f"{model.name} is not what was registered: {differ}; {remedy}")
    registry.find(registry.load((), (model,)), model.name)


def _remove(arguments: argparse.Namespace, settings: Settings) -> None:
    model = models.remove(settings, arguments.name)
    show_one({"removed": model.name, "folder": model.folder}, as_json=arguments.json)
    note("its files are where they were; its open jobs wait until it is registered again, with the same content")


def _plan(arguments: argparse.Namespace, settings: Settings) -> None:
    """Raises InvalidRequest for what the model does not make, Unmeasured."""
    model = models.named(settings, arguments.name)
    family = registry.find(models.families_of(settings), model.name)
    chosen = {name: getattr(arguments, name) for name in ("size", "frames", "steps", "guidance")}
    request = resolve(GenerationRequest(model=model.name, prompt="any", seed=0, **chosen), family.card, random.Random())
    shown = plan_shown.job(model.name, request, plan(family, request), arguments.tflops)
    if arguments.json:
        show_json(shown)
        return
    _show_all(shown, "components", "loops", "tensors")


def _found(model: Model) -> Checkpoint | None:
    """What its directory has; a workflow has none."""
    return None if model.is_workflow else checkpoint.read(model.root)


def _directory(settings: Settings, name: str) -> Model:
    """Raises BadSettings."""
    model = models.named(settings, name)
    if model.is_workflow:
        stages = ", ".join(model.options.values())
        raise BadSettings(f"name: {name!r} is a workflow and has no directory; its stages have: {stages}")
    return model


def _with_bar(nbytes: int, read: Callable[[Told], T]) -> T:
    """Read files, with a bar for people."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(30),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("reading", total=nbytes)

        def told(file: Path, nbytes: int) -> None:
            progress.update(bar, advance=nbytes, description=f"{file.parent.name}/{file.name}")

        return read(told)


@contextmanager
def _readable() -> Iterator[None]:
    """Raises OpsError for a file that cannot be read: it is no fault of this code."""
    try:
        yield
    except OSError as error:
        raise OpsError(f"cannot read {error.filename}: {error.strerror}") from error
