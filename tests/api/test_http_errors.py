"""Every error has a place in HTTP, and an unexpected one tells nothing of the inside."""

from collections.abc import Iterator

import pytest
from msgspec.json import decode

from api.errors import RULES, ApiError, rule_of
from api.schema import ErrorBody
from cards.errors import (
    BadCheckpoint,
    BadExtension,
    BadLora,
    BadPlan,
    CardError,
    InvalidCard,
    NoFamily,
    NoReference,
    NotFinite,
    NothingToShare,
    Unmeasured,
    WeightsChanged,
)
from engine.errors import EngineError
from tests.api.serving import app_of, without_sockets
from tests.sim import Running

NEVER_IN_HTTP = {
    BadCheckpoint,
    BadLora,
    BadPlan,
    InvalidCard,
    NoFamily,
    NoReference,
    BadExtension,
    NotFinite,
    NothingToShare,
    Unmeasured,
    WeightsChanged,
}
# a registry with one does not load, nor does a worker; a step that makes a NaN is its job's failure


def leaves(root: type[Exception]) -> Iterator[type[Exception]]:
    """The classes that are raised: those that no other refines."""
    below = root.__subclasses__()
    for child in below:
        yield from leaves(child)
    if not below:
        yield root


@pytest.mark.parametrize("root", [ApiError, CardError, EngineError])
def test_every_error_has_a_status(root: type[Exception]) -> None:
    assert {kind for kind in leaves(root) if rule_of(kind) is None} == NEVER_IN_HTTP & set(leaves(root))


def test_no_rule_is_for_nothing() -> None:
    raised = {kind for root in (ApiError, CardError, EngineError) for kind in leaves(root)}

    assert {kind for kind in RULES if not any(issubclass(leaf, kind) for leaf in raised)} == set()


def test_every_code_is_for_one_thing() -> None:
    assert len({rule.code for rule in RULES.values()}) == len(RULES)


async def test_the_unexpected_is_a_500_that_is_logged_and_says_nothing(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async with without_sockets(app_of(running)) as http:
        running.engine.registry = {"toy": None}  # type: ignore[dict-item]
        answer = await http.get("/v1/models")

    error = decode(answer.content, type=ErrorBody).error
    assert (answer.status_code, error.code, error.type) == (500, "internal_error", "server_error")
    assert "NoneType" not in answer.text
    assert answer.headers["x-request-id"] == "request-1"
    assert "AttributeError" in caplog.text
