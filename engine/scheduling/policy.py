"""Policies: in which order ready steps are given what there is. A policy has no state of its own."""

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from engine.scheduling.ready import Ready
from engine.scheduling.shares import Shares

Key: TypeAlias = tuple[float, ...]


class Policy(Protocol):
    name: str
    at_once: int | None
    """Jobs that a worker has in progress at a time; None for as many as fit."""

    def key(self, ready: Ready, now: float, shares: Shares) -> Key:
        """The smallest goes first."""
        ...


class RoundRobin:
    """By priority, and then a step of each job in turn."""

    name = "round_robin"
    at_once: int | None = None

    def key(self, ready: Ready, now: float, shares: Shares) -> Key:
        return (-ready.priority, ready.since)


POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in (RoundRobin(),)}
