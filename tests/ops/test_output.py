"""What the commands and the logs say, to people and to programs."""

import logging
import sys
from typing import Any

import msgspec
import pytest

from ops.logs import JsonLines, TextLines
from ops.tables import show, show_one

ROWS: list[dict[str, Any]] = [
    {"id": "job-1", "status": "completed", "seconds": 1.25, "tags": {"a": [1]}, "error": None},
    {"id": "job-2", "status": "[/red] [bold]x", "seconds": 0.0, "tags": {}, "error": "[Errno 2] [no/clip]"},
]


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("keyframe.engine", logging.WARNING, "file", 1, message, arguments, None)
    made.__dict__.update(extra)
    return made


def test_a_table_for_programs_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, as_json=True)

    assert msgspec.json.decode(capsys.readouterr().out) == ROWS


def test_a_table_for_people_shows_every_cell_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, as_json=False)

    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "status", "seconds", "tags", "error"]
    assert first.split() == ["job-1", "completed", "1.250", '{"a":[1]}', "-"]
    assert second.split() == ["job-2", "[/red]", "[bold]x", "0.000", "{}", "[Errno", "2]", "[no/clip]"]


@pytest.mark.parametrize(("as_json", "shown"), [(True, "[]"), (False, "nothing")])
def test_no_rows_are_said_to_be_none(as_json: bool, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    show([], as_json=as_json)

    assert capsys.readouterr().out.strip() == shown


def test_one_thing_is_shown_line_by_line_or_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(ROWS[1], as_json=True)
    assert msgspec.json.decode(capsys.readouterr().out) == ROWS[1]

    show_one(ROWS[1], as_json=False)
    assert capsys.readouterr().out.splitlines()[1] == "status   [/red] [bold]x"


def test_a_json_log_is_a_line_with_its_job() -> None:
    line = JsonLines().format(record("lost %s\nof %d", "w", 2, job="job-1"))

    assert "\n" not in line
    decoded = msgspec.json.decode(line)
    assert decoded.pop("at") > 0
    assert decoded == {"level": "warning", "logger": "keyframe.engine", "message": "lost w\nof 2", "job": "job-1"}


def test_a_json_log_carries_the_traceback() -> None:
    made = record("failed")
    try:
        raise ValueError("no")
    except ValueError:
        made.exc_info = sys.exc_info()

    decoded = msgspec.json.decode(JsonLines().format(made))

    assert "ValueError: no" in decoded["error"]
    assert "job" not in decoded


def test_a_text_log_ends_with_its_job() -> None:
    assert TextLines().format(record("lost", job="job-1")).endswith("WARNING lost [job-1]")
    assert TextLines().format(record("lost")).endswith("WARNING lost")
