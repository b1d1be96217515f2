"""Whether the devices that an engine's workers are to take are there, asked of a process that may import torch."""

import sys

import anyio

from ops.errors import BadSettings
from ops.settings import Settings
from workers.devices import device_of
from workers.errors import NoDevice


async def check(settings: Settings) -> None:
    """Raises BadSettings. What is asked for by the name of the CPU, or of whatever there is, is there."""
    ranks = len(settings.slots) * settings.ranks
    if not ranks or not settings.device.startswith("cuda"):
        return
    asked = [sys.executable, "-m", "ops.devices", settings.device, str(ranks)]
    answer = await anyio.run_process(asked, check=False, stderr=None)
    if answer.returncode:
        raise BadSettings(answer.stdout.decode().strip())


def main() -> None:
    asked, ranks = sys.argv[1:]
    try:
        device_of(asked, int(ranks) - 1)
    except NoDevice as error:
        print(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
