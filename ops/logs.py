"""Logs for people or for machines, each line with its job where there is one."""

import logging
from typing import Literal

import msgspec


def configure(level: str, form: Literal["text", "json"]) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of each connection that we close


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "job": getattr(record, "job", None),
            "error": self.formatException(record.exc_info) if record.exc_info else None,
        }
        return msgspec.json.encode({name: value for name, value in line.items() if value is not None}).decode()


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return f"{line} [{job}]" if (job := getattr(record, "job", None)) else line
