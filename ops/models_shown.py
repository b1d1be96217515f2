"""What the commands say of a registered checkpoint. Pure, apart from looking at the files' times."""

from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET

from cards import checkpoint
from cards.card import ModelCard
from cards.checkpoint import INDEX, Checkpoint
from cards.family import Family
from cards.model import Model
from engine.parity import ParityMeasured


def directory(found: Checkpoint) -> dict[str, Any]:
    """What lies there."""
    parts = found.parts.values()
    return {
        "layout": f"diffusers ({INDEX} of {found.pipeline})",
        "files": len(found.files),
        "parameters": sum(part.parameters for part in parts),
        "bytes": found.nbytes,
        "components": [
            {
                "component": part.name,
                "class": part.class_name,
                "parameters": part.parameters,
                "bytes": part.nbytes,
                "precision": part.precision,
            }
            for part in parts
        ],
    }


def identity(model: Model, family: Family) -> dict[str, Any]:
    """What an engine and its workers must have the same of. `weights` is of the files as they were registered."""
    weights = family.weights_digest() if model.is_workflow else checkpoint.digest(model.files)
    return {"card": family.card.digest, "weights": weights}


def row(model: Model, found: Checkpoint | None, family: Family | None, unusable: str | None) -> dict[str, Any]:
    """`unusable` says why there is no family of it."""
    return {
        "name": model.name,
        "usable": family is not None,
        "task": family.card.task if family else None,
        "precision": family.card.recipe.assumes_precision if family else model.precision,
        "bytes": found.nbytes if found else None,
        "weights": identity(model, family)["weights"][:16] if family else None,
        "folder": model.folder,
        "problem": unusable or _touched(model),
    }


def unusable(model: Model, reason: str) -> dict[str, Any]:
    """What is known of a model that cannot be opened."""
    return {
        "name": model.name,
        "precision": model.precision,
        "options": model.options,
        "folder": model.folder,
        "files": len(model.files),
        "problem": reason,
    }


def model(model: Model, found: Checkpoint | None, family: Family) -> dict[str, Any]:
    """A card as people ask of it, and where its weights lie."""
    card = family.card
    return {
        "name": model.name,
        "task": card.task,
        "family": card.family,
        "version": card.version,
        **identity(model, family),
        "precision": card.recipe.assumes_precision,
        "options": model.options,
        **_sizes(card),
        "steps": _range(card.recipe.steps),
        "guidance": _range(card.recipe.guidance),
        "solver": ", ".join(card.recipe.assumes_loop.values()),
        "inputs": {} if card.inputs is UNSET else {name: spec.kind for name, spec in card.inputs.items()},
        "parity": f"{card.parity.rung} with {card.parity.reference}, tolerance {card.parity.tolerance:g}",
        "folder": model.folder,
        "problem": _touched(model),
        **(directory(found) if found else {}),
        "loops": [
            {
                "node": node.name,
                "loop": node.loop,
                "semantics": card.loops[node.loop].semantics,
                "components": ", ".join(card.loops[node.loop].components),
                "snapshot_every": _or_none(card.loops[node.loop].snapshot_every),
            }
            for node in card.program.nodes
        ],
    }


def measured(found: ParityMeasured | None) -> dict[str, Any] | None:
    """What the log has of this card and these weights."""
    if found is None:
        return None
    return {
        "rung": found.rung or None,
        "reference": found.reference,
        "differ": [name for name, equal in found.outputs.items() if not equal],
        "at": datetime.fromtimestamp(found.measured_at, tz=UTC).isoformat(timespec="seconds"),
        "job": found.job,
        "fingerprint": found.fingerprint,
    }


def in_words(found: ParityMeasured | None) -> str:
    facts = measured(found)
    if facts is None:
        return "nothing yet: engine models parity measures it"
    if facts["rung"] is None:
        return f"not equal to {facts['reference']} at {facts['at']}, job {facts['job']}"
    return f"{facts['rung']} with {facts['reference']} at {facts['at']}, job {facts['job']}: {facts['fingerprint']}"


def _sizes(card: ModelCard) -> dict[str, Any]:
    output, canvas = card.output, card.output.canvas
    own = f"{output.width}x{output.height}"
    if canvas is UNSET:
        return {"size": own, "frames": str(output.frames), "fps": output.fps}
    presets = ", ".join(f"{one.width}x{one.height}" for one in canvas.presets)
    return {
        "size": f"{own}; multiples of {canvas.multiple} up to {canvas.most_pixels} pixels; made for are {presets}",
        "frames": f"{output.frames}; one more than a multiple of {canvas.frames_multiple}, up to {canvas.most_frames}",
        "fps": output.fps,
    }


def _range(choice: Any) -> str:
    return f"{choice.default:g}; from {choice.least:g} to {choice.most:g}"


def _or_none(value: Any) -> Any:
    return None if value is UNSET else value


def _touched(model: Model) -> str | None:
    touched = checkpoint.touched(model.root, model.files)
    if not touched:
        return None
    return f"{', '.join(touched)}: not as registered; engine models check {model.name} says whether its bytes differ"
