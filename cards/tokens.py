"""Prompts counted in tokens by a checkpoint's own tokenizer, before any job is made of them. No torch.

What an encoder does not take it cuts off without a word, and the clip lacks the end of what was asked for.
"""

import html
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cards.errors import InvalidRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"

SPECIAL = 8
"""More than any tokenizer adds to a text."""


class TokenLimit:
    """Up to `most` are taken, those that the tokenizer adds included. Where its file is missing nothing is checked."""

    def __init__(self, folder: Path, most: int) -> None:
        self._file = folder / FILE
        self._most = most

    def check(self, field: str, text: str) -> None:
        """Raises InvalidRequest."""
        cleaned = clean(text)
        if cleaned.isascii() and len(cleaned) + SPECIAL <= self._most:
            return  # no token is less than a character of these: the file of megabytes is not even read
        if (count := self._count(cleaned)) > self._most:
            raise InvalidRequest(field, f"has {count} tokens; the text encoder takes up to {self._most}: shorten it")

    def _count(self, text: str) -> int:
        return 0 if self._tokenizer is None else len(self._tokenizer.encode(text).ids)

    @cached_property
    def _tokenizer(self) -> "Tokenizer | None":
        if not self._file.is_file():
            return None
        from tokenizers import Tokenizer

        tokenizer: Tokenizer = Tokenizer.from_file(str(self._file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def clean(text: str) -> str:
    """As diffusers' `prompt_clean` leaves a prompt."""
    return " ".join(html.unescape(html.unescape(text)).split())
