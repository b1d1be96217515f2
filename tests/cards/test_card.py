"""A card contradicts itself in nothing, and is the same card on every machine."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict, replace

from cards.card import (
    ComponentSpec,
    InputSpec,
    LoopSpec,
    ModelCard,
    Node,
    OutputSpec,
    ParitySpec,
    Range,
    StageSpec,
    from_json,
    to_json,
)
from cards.errors import InvalidCard
from cards.shapes.card import CARD as SHAPES
from tests.history import FOLDER
from tests.toy import CARD as TOY

OTHERS: dict[str, Any] = {
    "name": "other",
    "family": "other",
    "version": "2",
    "task": "image_to_video",
    "components": {"counter": ComponentSpec(kind="vae", parameters=0)},
    "loops": TOY.loops | {"more": LoopSpec(semantics="toy.more/1")},
    "recipe": replace(TOY.recipe, shift=1.5),
    "parity": ParitySpec(reference="itself", rung="C2"),
    "output": OutputSpec(width=2, height=1, frames=1, fps=1),
    "program": replace(TOY.program, artifacts=("other.txt",)),
    "prompt_limit": 1001,
    "inputs": {"image": InputSpec(kind="image")},
    "stages": {"clip": StageSpec(model="other", card="digest")},
}


@pytest.mark.parametrize("card", [TOY, SHAPES], ids=lambda card: card.name)
def test_a_card_survives_json_with_its_identity(card: ModelCard) -> None:
    back = from_json(to_json(card))

    assert back == card
    assert to_json(back) == to_json(card)
    assert back.digest == card.digest


def test_the_order_in_which_a_card_was_written_is_no_part_of_it() -> None:
    backwards = replace(TOY, loops=dict(reversed(TOY.loops.items())))

    assert backwards.digest == TOY.digest


def test_a_change_of_any_field_is_another_card() -> None:
    digests = {replace(TOY, **{field: value}).digest for field, value in OTHERS.items()}

    assert OTHERS.keys() == asdict(TOY).keys()
    assert len(digests | {TOY.digest}) == len(OTHERS) + 1


@pytest.mark.parametrize(
    ("card", "digest"),
    [
        (TOY, "07c6d44609136f65fc3fb5279837f60a34c762785fff1728bbe869c9d3f592f9"),
        (SHAPES, "18c97c271a3f02690dbfb1ec5bae510613ed1ab53f09ce3d5f23ed494e9c9336"),
    ],
    ids=["toy", "shapes"],
)
def test_a_card_is_still_the_one_that_jobs_on_disk_pin(card: ModelCard, digest: str) -> None:
    """With other digests no job of an older release could run: a new field must be absent unless it is set."""
    assert card.digest == digest


def test_the_old_store_pins_the_toy_card() -> None:
    with closing(sqlite3.connect(FOLDER / "schema-0001.db")) as store:
        bodies = [body for (body,) in store.execute("SELECT body FROM events WHERE type = 'job_submitted'")]

    assert {msgspec.msgpack.decode(body)["model"]["card"] for body in bodies} == {TOY.digest}


def test_how_often_a_loop_is_stored_is_part_of_its_card() -> None:
    def every(n: int) -> ModelCard:
        return replace(TOY, loops=TOY.loops | {"count": replace(TOY.loops["count"], snapshot_every=n)})

    assert len({TOY.digest, every(1).digest, every(8).digest}) == 3
    assert from_json(to_json(every(8))).loops["count"].snapshot_every == 8
    with pytest.raises(InvalidCard, match=r"loops\.count\.snapshot_every: 0 is less than 1"):
        every(0).validate()


def test_another_process_gives_a_card_the_same_digest() -> None:
    code = "from cards.shapes.card import CARD; print(CARD.digest)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONHASHSEED": "1"})

    assert done.stdout.decode().strip() == SHAPES.digest


@pytest.mark.parametrize("card", [TOY, SHAPES], ids=lambda card: card.name)
def test_the_cards_we_ship_contradict_themselves_in_nothing(card: ModelCard) -> None:
    card.validate()


def test_the_shapes_card_says_what_its_networks_are() -> None:
    from cards.shapes.card import LATENT_FRAMES, SCALE
    from cards.shapes.model import COMPONENTS, CONFIG

    assert CONFIG.latent_frames == LATENT_FRAMES
    assert SHAPES.output.frames == CONFIG.latent_frames * CONFIG.frames_per_latent
    assert SHAPES.output.width == SHAPES.output.height == CONFIG.latent_size * CONFIG.pixels_per_latent * SCALE
    assert SHAPES.output.fps == CONFIG.fps
    assert SHAPES.components.keys() == COMPONENTS.keys()
    assert (SHAPES.recipe.steps.default, SHAPES.recipe.guidance.default) == (CONFIG.steps, CONFIG.guidance)
    assert SHAPES.recipe.shift == CONFIG.shift


def recipe(**changes: Any) -> ModelCard:
    return replace(TOY, recipe=replace(TOY.recipe, **changes))


def nodes(*changed: Node) -> ModelCard:
    return replace(TOY, program=replace(TOY.program, nodes=changed))


PREPARE, COUNT, FINISH = TOY.program.nodes


@pytest.mark.parametrize(
    ("make", "field", "says"),
    [
        (lambda: recipe(assumes_loop={"nap": "toy.nap/1"}), "recipe.assumes_loop", "'nap' is not a loop"),
        (lambda: recipe(assumes_loop={"count": "toy.count/2"}), "recipe.assumes_loop", "made for count = toy.count/2"),
        (
            lambda: replace(TOY, loops=TOY.loops | {"count": LoopSpec(semantics="toy.count/1", components=("vae",))}),
            "loops.count.components",
            "'vae' is not a component; there are counter",
        ),
        (
            lambda: replace(TOY, components={"counter": ComponentSpec(kind="t", parameters=0, precision="bfloat16")}),
            "components.counter.precision",
            "bfloat16 is not the recipe's float32",
        ),
        (lambda: recipe(steps=Range(1, 4, 5)), "recipe.steps", "5 is outside 1 to 4"),
        (lambda: recipe(guidance=Range(1, 4, 0)), "recipe.guidance", "0 is outside 1 to 4"),
        (lambda: recipe(guidance=Range(4, 1, 2)), "recipe.guidance", "2 is outside 4 to 1"),
        (lambda: recipe(guidance=Range(0, 1, float("nan"))), "recipe.guidance", "nan is outside"),
        (lambda: nodes(), "program.nodes", "is empty"),
        (lambda: nodes(replace(PREPARE, loop="nap")), "program.nodes.prepare.loop", "'nap' is not a loop"),
        (lambda: nodes(COUNT, PREPARE), "program.nodes.count.inputs", "'prepare.start' is not made by an earlier node"),
        (
            lambda: nodes(PREPARE, replace(COUNT, inputs={"start": "prepare.end"})),
            "program.nodes.count.inputs",
            "'prepare.end' is not made by an earlier node; there are prepare.start",
        ),
        (lambda: nodes(PREPARE, COUNT, replace(FINISH, name="count")), "program.nodes.count.name", "taken twice"),
    ],
)
def test_a_card_that_contradicts_itself_names_the_field(make: Callable[[], ModelCard], field: str, says: str) -> None:
    with pytest.raises(InvalidCard, match="toy") as caught:
        make().validate()

    assert caught.value.field == field
    assert says in caught.value.problem
