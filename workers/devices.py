"""The device of each rank, found and checked before anything is loaded."""

import os
from collections.abc import Callable
from pathlib import Path

from workers.errors import NoDevice


def gpus() -> int:
    """How many torch finds here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_of(asked: str, number: int = 0, gpus: Callable[[], int] = gpus) -> str:
    """That of the rank with this number on its machine: ranks take GPUs in order, `cuda:1` from the second on.

    `auto` is the GPUs where there are any, and the CPU, which all ranks share, elsewhere. Raises NoDevice.
    """
    kind, _, first = asked.partition(":")
    there = 0 if kind == "cpu" else gpus()
    if kind == "cpu" or (kind == "auto" and not there):
        return "cpu"
    index = int(first or 0) + number
    if index >= there:
        raise NoDevice(asked, index, there)
    return f"cuda:{index}"


def memory_of(device: str, ranks: int = 1) -> int:
    """Bytes: a GPU's own, and of the CPU a part for each of the `ranks` there of what this machine has, or lets this
    process have.
    """
    if device != "cpu":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        allowed = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # there is none, or it says "max"
        allowed = there
    return min(there, allowed) // ranks


def settle(device: str) -> None:
    """This process computes there, with kernels that give one input the same bits each time."""
    if device != "cpu":
        import torch

        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic = True
