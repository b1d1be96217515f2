"""Stores that are broken on purpose: the checks must find each of them unclean.

Each of these changes the process that is going to be killed, and only that. All of them pass every test without a kill.
"""

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection

from store import blobs, sqlite
from store.driver import Driver
from store.group import MOVE_HEADS, write_group
from store.writer import Writer
from tests.crash.scenario import Place, Scenario, Tell


def acknowledge_before_the_commit() -> None:
    def run(writer: Writer) -> None:
        while group := writer._next_group():

            def work(connection: Connection, group: Any = group) -> Sequence[Any]:
                answers = write_group(connection, [request.append for request in group])
                writer._loop.call_soon_threadsafe(writer._tell, group, answers)
                time.sleep(0.01)
                return answers

            writer._session.transact(work)

    Writer._run = run


def commit_the_heads_before_the_events() -> None:
    real = Driver.write

    def write(driver: Driver, sql: str, rows: Sequence[Any]) -> None:
        real(driver, sql, rows)
        if sql == MOVE_HEADS:
            driver._cursor.execute("COMMIT")
            driver._cursor.execute("BEGIN")

    Driver.write = write


def acknowledge_before_the_sync() -> None:
    real = sqlite._set_up_writer

    def set_up(connection: sqlite3.Connection, record: Any, synchronous: str) -> None:
        real(connection, record, synchronous)
        connection.execute("PRAGMA synchronous = OFF")

    sqlite._set_up_writer = set_up


def name_blobs_before_their_bytes_are_synced() -> None:
    blobs.Disk.sync = lambda disk, fd: None


def forget_to_sync_the_folders_of_blobs() -> None:
    blobs.Disk.sync_folder = lambda disk, folder: None


BREAKS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        acknowledge_before_the_commit,
        commit_the_heads_before_the_events,
        acknowledge_before_the_sync,
        name_blobs_before_their_bytes_are_synced,
        forget_to_sync_the_folders_of_blobs,
    )
}


def broken(scenario: Scenario, how: str) -> Scenario:
    async def live(place: Place, tell: Tell) -> None:
        BREAKS[how]()
        await scenario.live(place, tell)

    return replace(scenario, live=live)
