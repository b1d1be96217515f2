"""The command line: all nouns in one list."""

import argparse
import functools
import os
import sys
from collections.abc import Sequence

import anyio

from engine.errors import EngineError
from ops.admin import bundles, courses, db, doctor, gc, jobs, leases, log, replay, sql, verbs, workers
from ops.admin.parser import Parser, group
from ops.cli import run_command, settings_from
from ops.errors import OpsError
from ops.version import VERSION


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    run_command(functools.partial(_run, arguments))


def _run(arguments: argparse.Namespace) -> None:
    try:
        code = anyio.run(arguments.run, arguments, settings_from(arguments))
    except EngineError as error:
        raise OpsError(str(error)) from error
    except BrokenPipeError:  # whoever read has had enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


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
