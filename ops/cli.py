"""`engine`: serve, generate, worker, models."""

import argparse
import functools
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
from msgspec.structs import replace

from cards.errors import (
    BadExtension,
    CardError,
    InvalidCard,
    InvalidRequest,
    NoFamily,
    NothingToShare,
    UnknownModel,
)
from ops import asked, logs, worker
from ops.errors import BadSettings, OpsError
from ops.settings import Settings, read
from ops.version import VERSION
from store.errors import BadStoreUrl, StoreError
from workers.errors import NoDevice, WorkerError

KNOWN = (OpsError, StoreError, CardError, WorkerError)
"""What a person can do something about."""

OF_NO_USE = (
    BadExtension, BadStoreUrl, InvalidCard, InvalidRequest, NoDevice, NoFamily, NothingToShare, UnknownModel,
)  # fmt: skip
"""A word, a number, a setting or a file of the command itself is wrong."""


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    run_command(functools.partial(arguments.run, arguments))


def run_command(command: functools.partial[None], known: tuple[type[Exception], ...] = KNOWN) -> None:
    """Run it, and say what a person can do about what went wrong in one line."""
    try:
        command()
    except known as error:
        sys.exit(_failed(error))
    except BaseExceptionGroup as group:
        ours, other = group.split(known)
        if other is not None or ours is None:
            raise
        sys.exit(_failed(first(ours)))
    except KeyboardInterrupt:
        sys.exit(130)


def settings_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Flags for some of the settings; all others come from the environment or the file."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    for name in names:
        default = getattr(Settings(), name)
        shown = "" if default in (None, (), {}) else f" (default {default})"
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar=name.upper(), help=f"setting{shown}")


def settings_from(arguments: argparse.Namespace) -> Settings:
    flags = {name: getattr(arguments, name, None) for name in Settings.__struct_fields__}
    settings = read(flags, os.environ, arguments.config)
    logs.configure(settings.log_level, settings.log_format)
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="engine", description="Keyframe: durable video generation.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run an engine with its HTTP API and workers")
    settings_flags(
        serve, "data", "store", "blobs", "host", "port", "workers", "split", "ranks", "parallel", "device", "threads",
        "memory_gib", "weights_bytes", "compile", "listen_workers", "listen_transfers",
        "families", "extensions", "max_active", "policy", "batch_most", "batch_wait_s", "log_level", "log_format",
    )  # fmt: skip
    serve.set_defaults(run=_serve)

    generate = commands.add_parser("generate", help="make one clip, or one picture")
    generate.add_argument("prompt")
    generate.add_argument("--model", default="shapes")
    asked.flags(generate)
    generate.add_argument("--preview-every", type=int, metavar="N", help="a still every N steps, beside the clip")
    generate.add_argument("--tenant", metavar="NAME", help="on whose account it runs")
    generate.add_argument("--deadline-s", type=float, metavar="S", help="seconds from now by which it is wanted")
    generate.add_argument(
        "--out", type=Path, metavar="FILE", help="what else is made goes beside it (default out/clip with its suffix)"
    )
    generate.add_argument("--server", metavar="URL", help="an engine elsewhere")
    settings_flags(generate, "data", "store", "blobs", "workers", "ranks", "device", "threads")
    generate.set_defaults(run=_generate)

    start = commands.add_parser("worker", help="run a worker for an engine elsewhere")
    start.add_argument("--connect", required=True, metavar="ADDRESS", help="the engine's --listen-workers")
    settings_flags(
        start, "pool", "serves", "ranks", "parallel", "device", "threads", "memory_gib", "weights_bytes", "compile",
        "listen_transfers", "data",
        "blobs", "families", "extensions",
    )  # fmt: skip
    start.set_defaults(run=_worker)

    from ops import models_command  # which needs this module

    models_command.add(commands)
    return parser


def _serve(arguments: argparse.Namespace) -> None:
    from ops.serve import serve

    anyio.run(serve, settings_from(arguments), backend_options={"use_uvloop": True})


def _generate(arguments: argparse.Namespace) -> None:
    from ops.generate import generate

    settings = replace(settings_from(arguments), port=0)  # whoever serves on a port of note is not in our way
    logging.getLogger().setLevel(logging.ERROR)  # the progress bar says what a person wants to know
    request = asked.request(arguments, "model", "preview_every", "tenant", "deadline_s")
    image = asked.image(arguments)
    make = functools.partial(generate, request, arguments.out, settings, arguments.server, image)
    try:
        files = anyio.run(make, backend_options={"use_uvloop": True})
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one was", file=sys.stderr)
        raise
    for path in files:
        print(path)


def _worker(arguments: argparse.Namespace) -> None:
    settings = settings_from(arguments)
    _check_address(arguments.connect)
    of_worker = worker.settings_of(settings, arguments.connect, parent=None, serves=settings.serves)
    why = worker.run(of_worker, settings.blobs_url)
    logging.getLogger("keyframe.ops").info("worker ended: %s", why)


def _check_address(address: str) -> None:
    import zmq

    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(address)
    except zmq.ZMQError as error:
        raise BadSettings(f"connect: {address!r} is no address ({error.strerror}); give the engine's") from error


def _failed(error: BaseException) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code_of(error)


def code_of(error: BaseException) -> int:
    """2 for what could not be asked for: docs/how-to/operate.md says what the codes mean."""
    code: int = 2 if isinstance(error, OF_NO_USE) else getattr(error, "code", 1)
    return code


def first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return first(error) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    main()
