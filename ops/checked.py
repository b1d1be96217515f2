"""A registered checkpoint beside what lies in its directory now, file by file."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from cards import checkpoint
from cards.checkpoint import Stamps, Told
from cards.errors import BadCheckpoint
from cards.model import Model

State = Literal["same", "changed", "new", "missing", "broken"]

IN_WORDS: dict[State, str] = {
    "missing": "is gone",
    "broken": "is of no use",
    "changed": "differs",
    "new": "was not there",
}


class Looked(Struct, frozen=True):
    """A file, or a folder that lacks one, by its path below the checkpoint's. `problem` is what is wrong with it
    whatever was registered.
    """

    component: str | None
    file: str
    state: State
    problem: str | None


def to_look_at(model: Model) -> tuple[list[str], dict[str, str]]:
    """What is to be looked at: all that was registered, that is there or that is wrong; and what is wrong with it."""
    there, wrong = _there(model.root)
    return sorted({*model.files, *there, *wrong}), wrong


def nbytes(model: Model, names: Iterable[str]) -> int:
    return sum(file.stat().st_size for name in names if (file := model.root / name).is_file())


def look(model: Model, names: Sequence[str], wrong: dict[str, str], told: Told) -> list[Looked]:
    """Reads all files."""
    stamps: Stamps = {}
    unread: dict[str, str] = {}
    for name in names:
        try:
            stamps[name] = checkpoint.stamp(model.root / name, told)
        except FileNotFoundError:
            pass  # its state says so
        except OSError as error:
            unread[name] = f"cannot be read: {error.strerror}"
    problems = unread | wrong
    return [Looked(_component(name), name, _state(model, stamps, name), problems.get(name)) for name in names]


def differ(model: Model, found: Sequence[Looked]) -> str:
    """In words what is not as it was registered; empty if all of it is."""
    if not model.root.is_dir():
        return "its directory is gone"
    by_state = {state: [one.file for one in found if one.state == state] for state in IN_WORDS}
    return "; ".join(f"{', '.join(files)} {IN_WORDS[state]}" for state, files in by_state.items() if files)


def _there(root: Path) -> tuple[list[str], dict[str, str]]:
    try:
        return [str(file.relative_to(root)) for file in checkpoint.read(root).files], {}
    except BadCheckpoint as error:
        return [], {str(path.relative_to(root)): problem for path, problem in error.wrong.items()}


def _state(model: Model, stamps: Stamps, name: str) -> State:
    if name not in stamps:
        return "broken" if (model.root / name).exists() else "missing"
    if name not in model.files:
        return "new"
    return "same" if stamps[name].digest == model.files[name].digest else "changed"


def _component(name: str) -> str | None:
    """The index is of none."""
    return None if name in (checkpoint.INDEX, ".") else name.partition("/")[0]
