"""What an append is answered with, and how the answer reaches whoever waits for it."""

import asyncio
from typing import TypeAlias

from store.journal import Appended

Answer: TypeAlias = Appended | Exception


def settle(future: asyncio.Future[Appended], answer: Answer) -> None:
    if future.done():
        return  # the caller was cancelled; the append stands
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
