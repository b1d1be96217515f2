"""The command line: all nouns in one list."""

import argparse
import functools
import logging
import os
import sys
from collections.abc import Sequence

import anyio

from engine.errors import EngineError
from ops import cli
from ops.admin import bundles, courses, db, doctor, gc, jobs, leases, log, replay, sql, verbs, workers
from ops.admin.parser import Parser, group
from ops.errors import BadSettings
from ops.version import VERSION
from store.open import MEMORY

KNOWN = (*cli.KNOWN, EngineError, OSError)
"""What is said in one line. An OSError names the file and what is the matter with it."""


def main(argv: Sequence[str] | None = None) -> None:
    cli.run_command(functools.partial(_parse_and_run, argv), KNOWN)


def _parse_and_run(argv: Sequence[str] | None) -> None:
    arguments = parse(sys.argv[1:] if argv is None else argv)
    settings = cli.settings_from(arguments)
    if settings.store == MEMORY:
        raise BadSettings(f"store: {MEMORY} ends with its process: there is nothing of it to look at")
    logging.getLogger().setLevel(logging.ERROR)  # what an engine of this process warns of is in its answer
    try:
        code = anyio.run(arguments.run, arguments, settings)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has had enough, as `| head` does
        _let_go_of_stdout()
        code = 0
    except OSError:
        _let_go_of_stdout()  # it would be tried again at the end
        raise
    sys.exit(code)


def _let_go_of_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Raises BadSettings for what is no text: no store takes it, and no terminal shows it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise BadSettings(f"{word!r} is not valid UTF-8") from error
    return parser().parse_args(words)


def parser() -> Parser:
    parser = Parser(prog="engine-admin", description="Look at jobs and stores, and change them.")
    parser.add_argument("--version", action="version", version=VERSION)
    nouns = parser.add_subparsers(required=True, metavar="COMMAND")
    of_jobs = group(nouns, "jobs", "look at jobs, stop them, let them go on, forget them")
    jobs.add(of_jobs)
    verbs.add(of_jobs)
    courses.add(of_jobs)
    bundles.add(of_jobs)
    replay.add(group(nouns, "replay", "execute logs again"))
    log.add(group(nouns, "log", "the events of a store"))
    leases.add(group(nouns, "leases", "the engines that share a store"))
    workers.add(group(nouns, "workers", "the workers of live engines"))
    db.add(group(nouns, "db", "the store itself"))
    gc.add(group(nouns, "gc", "what may be forgotten"))
    doctor.add(nouns)
    sql.add(nouns)
    return parser
