"""Prompts counted in tokens by a checkpoint's own tokenizer, before any job is made of them. No torch.

What an encoder does not take it cuts off without a word, and the clip lacks the end of what was asked for.
"""

import html
import json
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cards.errors import InvalidRequest

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
CHAT = "chat_template.jinja"

SPECIAL = 8
"""More than any tokenizer adds to a text."""


Reading: TypeAlias = Callable[[str], str]
"""What a pipeline makes of a prompt before its tokenizer gets it."""


def clean(text: str) -> str:
    """As diffusers' `prompt_clean` leaves a prompt."""
    return " ".join(html.unescape(html.unescape(text)).split())


class TokenLimit:
    """Up to `most` are taken, those that the tokenizer or a chat adds included. Where the tokenizer's file is missing
    nothing is checked.
    """

    def __init__(self, folder: Path, most: int, read: Reading = clean) -> None:
        self._file = folder / FILE
        self._most = most
        self._read = read

    def check(self, field: str, text: str) -> None:
        """Raises InvalidRequest."""
        read = self._read(text)
        if read.isascii() and len(read) + SPECIAL <= self._most:
            return  # no token is less than a character of these: the file of megabytes is not even read
        if (count := self._count(read)) > self._most:
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


def in_chat(folder: Path, **settings: bool) -> Reading:
    """A prompt as all that a user says, in the chat template of a tokenizer, which ends where the answer begins."""

    def read(text: str) -> str:
        template = _template(folder)
        messages = [{"role": "user", "content": text}]
        return template.render(messages=messages, add_generation_prompt=True, **settings) if template else text

    return read


@cache
def _template(folder: Path) -> "Template | None":
    """In a file of its own or, as older libraries save it, in the config."""
    if (own := folder / CHAT).is_file():
        source = own.read_text()
    elif (config := folder / CONFIG).is_file():
        source = json.loads(config.read_text()).get("chat_template")
    else:
        source = None
    if not source:
        return None
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
