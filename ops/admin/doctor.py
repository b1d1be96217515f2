"""`engine-admin doctor`: exits with 1 if anything is wrong."""

import argparse
from typing import Any

import msgspec

from engine.clock import WallClock
from ops.admin.parser import command
from ops.doctor import examine
from ops.settings import Settings
from ops.tables import show


def add(nouns: Any) -> None:
    command(nouns, "doctor", _doctor, "what is wrong with this machine or this store")


async def _doctor(arguments: argparse.Namespace, settings: Settings) -> int:
    findings = await examine(settings, WallClock())
    show([msgspec.to_builtins(finding) for finding in findings], as_json=arguments.json)
    return 1 if any(finding.level == "wrong" for finding in findings) else 0
