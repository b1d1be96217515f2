"""Token limits: counted as the encoder's tokenizer counts, named at submission, without torch."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cards.errors import InvalidRequest
from cards.request import GenerationRequest
from cards.tokens import CHAT, CONFIG, FILE, TokenLimit, clean, in_chat
from tests.parity import tiny, tiny_flux2
from tests.parity.reference import family
from tests.sim import World

LIMIT = 32


@cache
def tokenizer() -> Any:
    from transformers import T5Tokenizer

    return T5Tokenizer.from_pretrained(tiny.wan() / "tokenizer")


def prompt(tokens: int) -> str:
    """A text of as many tokens: of these letters each is one."""
    text = "a" * (tokens - 2)  # and the start of a word, and the end of the text
    assert len(tokenizer()(text).input_ids) == tokens
    return text


@pytest.fixture
def limit() -> TokenLimit:
    return TokenLimit(tiny.wan() / "tokenizer", LIMIT)


def test_as_many_as_are_taken_are_fine(limit: TokenLimit) -> None:
    limit.check("prompt", prompt(LIMIT))
    limit.check("prompt", "")


def test_one_more_is_refused_with_the_limit(limit: TokenLimit) -> None:
    with pytest.raises(InvalidRequest, match=r"has 33 tokens; the text encoder takes up to 32: shorten it") as caught:
        limit.check("negative_prompt", prompt(LIMIT + 1))

    assert caught.value.field == "negative_prompt"


@pytest.mark.parametrize("text", ["a   cat &amp;amp; a\ndog", "日本 é", "&#xFDFA;" * 3, "😀" * 9, "x\t"])
def test_a_text_is_counted_as_the_pipeline_reads_it(text: str) -> None:
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean

    assert clean(text) == prompt_clean(text)
    most = len(tokenizer()(prompt_clean(text)).input_ids)
    TokenLimit(tiny.wan() / "tokenizer", most).check("prompt", text)
    with pytest.raises(InvalidRequest, match=f"has {most} tokens"):
        TokenLimit(tiny.wan() / "tokenizer", most - 1).check("prompt", text)


BLOCKS = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {% if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {% endif %}
{% endif %}
"""
"""Of Qwen's kind: with the start of an answer that has been thought about."""


@pytest.mark.parametrize("template", [tiny_flux2.CHAT, BLOCKS])
@pytest.mark.parametrize("text", ["", "a  cat & a\n dog ", "{{ messages }} <|im_end|>", "日本 &amp; é"])
def test_a_prompt_in_a_chat_is_what_transformers_makes_of_it(tmp_path: Path, template: str, text: str) -> None:
    chatting = tiny_flux2.tokenizer()
    chatting.chat_template = template
    chatting.save_pretrained(tmp_path)
    messages = [{"role": "user", "content": text}]
    asked = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    whole = chatting.apply_chat_template(messages, **asked)

    assert in_chat(tmp_path, enable_thinking=False)(text) == whole
    most = len(chatting(whole).input_ids)
    TokenLimit(tmp_path, most, in_chat(tmp_path, enable_thinking=False)).check("prompt", text)
    with pytest.raises(InvalidRequest, match=f"has {most} tokens"):
        TokenLimit(tmp_path, most - 1, in_chat(tmp_path, enable_thinking=False)).check("prompt", text)


def test_a_chat_template_may_be_in_the_config_or_nowhere(tmp_path: Path) -> None:
    for place in ("config", "none"):
        (tmp_path / place).mkdir()
    (tmp_path / "config" / CONFIG).write_text('{"chat_template": "<{{ messages[0].content }}>"}')

    assert not (tmp_path / "config" / CHAT).exists()
    assert in_chat(tmp_path / "config")("a") == "<a>"
    assert in_chat(tmp_path / "none")("a") == "a"


def test_without_the_file_nothing_is_checked(tmp_path: Path) -> None:
    TokenLimit(tmp_path, 1).check("prompt", "a long text")


def test_a_short_prompt_does_not_read_the_file(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not read")

    TokenLimit(tmp_path, 512).check("prompt", "a red cat")


def test_tokens_are_counted_without_torch() -> None:
    code = f"""
import random, sys
from cards import registry
from cards.errors import InvalidRequest
from cards.model import Model
from cards.request import GenerationRequest, resolve
family = registry.open_model(Model(name="m", folder={str(tiny.wan())!r}))
asked = GenerationRequest(model="m", prompt="é " * 600, size="64x64")
try:
    family.notices(resolve(asked, family.card, random.Random(0)))
except InvalidRequest as error:
    print(error)
assert not {{"torch", "transformers", "diffusers"}} & sys.modules.keys()
"""

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "prompt: has" in told
    assert "up to 512" in told


async def test_a_submission_is_refused_by_its_field() -> None:
    wan = family(tiny.wan(), "float32")
    async with World(families=(wan,)).engine(workers=0) as running:
        with pytest.raises(InvalidRequest, match=r"negative_prompt: has 513 tokens; .* up to 512"):
            await running.client.submit(
                GenerationRequest(model="tiny", prompt="a", negative_prompt=prompt(513), size="64x64")
            )
        job = await running.client.submit(GenerationRequest(model="tiny", prompt=prompt(512), size="64x64"))

        assert [row.id for row in await running.client.jobs()] == [job.id]
