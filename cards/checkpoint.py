"""A diffusers checkpoint directory as it lies on disk: its parts, their sizes, what is missing, its identity. No torch.

`model_index.json` names the pipeline and its parts as [library, class]; each part has a folder of its own with a
config and, if it has weights, safetensors files.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec
from blake3 import blake3
from msgspec import Struct

from cards.card import ComponentSpec, Precision
from cards.errors import BadCheckpoint

log = logging.getLogger("keyframe.cards")

INDEX = "model_index.json"
VOCABULARIES = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt")
"""What a tokenizer makes of words is in one of these."""

WITHOUT_WEIGHTS = ("Tokenizer", "TokenizerFast", "Processor", "ProcessorFast")
"""How the classes end that are configured and have no weights, beside schedulers."""

CONFIGS = ("config.json", "scheduler_config.json", "tokenizer_config.json", "preprocessor_config.json")
STEMS = ("diffusion_pytorch_model", "model")
"""Of the files of a part's main variant: others, such as `model.fp16`, are loaded by nobody here."""
PICKLED = (".bin", ".pt", ".pth", ".ckpt")

CHUNK_BYTES = 1 << 24
BESIDE = {"LTX2Pipeline": {"latent_upsampler": "ltx2"}}
"""By pipeline: parts of another one that lie in the same directory, if anywhere, and the library of their class."""
PRECISIONS: dict[str, Precision] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Part(Struct, frozen=True, kw_only=True):
    """One entry of the model index. `nbytes` and `parameters` are of its weights as stored; a tokenizer has none."""

    name: str
    library: str
    class_name: str
    folder: Path
    files: tuple[Path, ...]
    parameters: int = 0
    nbytes: int = 0
    precision: Precision | None = None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of its tensors, by name. Raises BadCheckpoint."""
        files = [file for file in self.files if file.suffix == ".safetensors"]
        return {key: about.shape for file in files for key, about in _tensors(self.name, file).items()}

    def config(self) -> dict[str, Any]:
        for name in CONFIGS:
            if (self.folder / name).is_file():
                return _json(self.folder / name)
        return {}


class Stamp(Struct, frozen=True):
    """How a file looked when its digest was taken."""

    nbytes: int
    changed_ns: int
    digest: str


Stamps: TypeAlias = dict[str, Stamp]

Told: TypeAlias = Callable[[Path, int], None]
"""Hears of every so many bytes of a file that have been read."""


def _nobody(file: Path, nbytes: int) -> None:
    pass


class Checkpoint(Struct, frozen=True, kw_only=True):
    """`settings` are the entries of the model index that are no parts, such as `boundary_ratio`."""

    root: Path
    pipeline: str
    settings: Mapping[str, Any]
    parts: Mapping[str, Part]

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.root / INDEX, *(file for part in self.parts.values() for file in part.files))

    @property
    def nbytes(self) -> int:
        """Of all files on disk."""
        return sum(file.stat().st_size for file in self.files)

    def stamps(self, known: Mapping[str, Stamp] = {}, told: Told = _nobody) -> Stamps:
        """Every file by its path below the root. One that looks as it did is not read; `told` of those that are."""
        names = {str(file.relative_to(self.root)): file for file in self.files}
        return {name: _stamp(file, known.get(name), told) for name, file in names.items()}

    def components(self, precision: Precision) -> dict[str, ComponentSpec]:
        """What a card says of the parts."""
        return {
            name: ComponentSpec(kind=name, parameters=part.parameters, precision=precision)
            for name, part in self.parts.items()
        }

    def require(self, *names: str) -> None:
        """Raises BadCheckpoint unless the parts are there."""
        if absent := [name for name in names if name not in self.parts]:
            raise BadCheckpoint(self.root, f"{self.pipeline} needs {', '.join(absent)}; {INDEX} has none")

    @property
    def precision(self) -> Precision:
        """That of the largest part with weights."""
        largest = max(self.parts.values(), key=lambda part: part.nbytes)
        return largest.precision or "float32"


def read(root: Path) -> Checkpoint:
    """Raises BadCheckpoint, which names all that is missing."""
    if not (root / INDEX).is_file():
        raise BadCheckpoint(root, _no_index(root))
    index = _json(root / INDEX)
    pipeline = index.get("_class_name")
    if not isinstance(pipeline, str):
        raise BadCheckpoint(root, f"{INDEX} does not say its _class_name")
    parts: dict[str, Part] = {}
    wrong: dict[Path, str] = {}
    for name, (library, class_name) in (*_listed(index), *_beside(root, pipeline, index)):
        try:
            parts[name] = _part(name, library, class_name, root / name)
        except BadCheckpoint as error:
            wrong[error.path] = error.problem
        except OSError as error:
            wrong[root / name] = f"{name}: cannot read {error.filename}: {error.strerror}"
    if wrong:
        raise BadCheckpoint(root, "; ".join(wrong.values()), wrong)
    if not parts:
        raise BadCheckpoint(root, f"{INDEX} names no parts")
    settings = {name: value for name, value in index.items() if name[0] != "_" and not isinstance(value, list)}
    return Checkpoint(root=root, pipeline=pipeline, settings=settings, parts=parts)


def _no_index(root: Path) -> str:
    if not root.is_dir():
        return "is no directory"
    loose = [file.name for file in sorted(root.iterdir()) if file.suffix in (".safetensors", ".pth", ".pt", ".ckpt")]
    found = f"; {', '.join(loose[:3])} is another layout, which diffusers converts" if loose else ""
    return f"has no {INDEX}: give the folder that `save_pretrained` of a pipeline wrote{found}"


def digest(stamps: Stamps) -> str:
    """Of all files by content and by path: what two machines compare."""
    return blake3(json.dumps(sorted((path, stamp.digest) for path, stamp in stamps.items())).encode()).hexdigest()


def touched(root: Path, stamps: Stamps) -> list[str]:
    """The files that do not look as they did, or are gone. Nothing is read."""
    return [name for name, stamp in stamps.items() if looks(root / name) != (stamp.nbytes, stamp.changed_ns)]


def looks(file: Path) -> tuple[int, int] | None:
    """Without reading it: how large it is, and when it changed. None if it is gone."""
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


def stamp(file: Path, told: Told = _nobody) -> Stamp:
    """Reads all of it."""
    about = file.stat()
    hashed = blake3()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            hashed.update(chunk)
            told(file, len(chunk))
    return Stamp(about.st_size, about.st_mtime_ns, hashed.hexdigest())


def _stamp(file: Path, before: Stamp | None, told: Told) -> Stamp:
    if before is None:
        return stamp(file, told)
    if looks(file) == (before.nbytes, before.changed_ns):
        return before
    log.info("%s is not as it was when its digest was taken: reading it", file)
    now = stamp(file, told)
    if now.digest != before.digest:
        log.warning("%s has changed since it was registered: these are other weights than those", file)
    return now


def _listed(index: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    for name, value in index.items():
        if isinstance(value, list) and len(value) == 2 and all(isinstance(word, str) for word in value):
            yield name, (value[0], value[1])


def _beside(root: Path, pipeline: str, index: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    for name, library in BESIDE.get(pipeline, {}).items():
        if name not in index and (config := root / name / "config.json").is_file():
            yield name, (library, str(_json(config).get("_class_name")))


def _missing(class_name: str, folder: Path, weights: Sequence[Path]) -> str:
    """What of a part is not there, in words."""
    is_model = not class_name.endswith(WITHOUT_WEIGHTS)
    if "Tokenizer" in class_name and not any(next(folder.glob(name), None) for name in VOCABULARIES):
        return f"has no vocabulary: one of {', '.join(VOCABULARIES)}"
    if not weights and not any((folder / config).is_file() for config in CONFIGS):
        return "has neither a config nor weights"
    if not weights and is_model and (folder / "config.json").is_file():
        return "has a config and no safetensors"
    if weights and not (folder / "config.json").is_file():
        return "has weights and no config.json"
    return ""


def _part(name: str, library: str, class_name: str, folder: Path) -> Part:
    if not folder.is_dir():
        raise BadCheckpoint(folder, f"{name}: there is no folder {folder.name}")
    small = [file for file in folder.iterdir() if file.suffix in (".json", ".txt", ".model", ".jinja")]
    weights = _weights(name, folder)
    files = tuple(sorted((*small, *weights)))
    if unreadable := [file.name for file in files if not os.access(file, os.R_OK)]:  # as a link to what is gone
        raise BadCheckpoint(folder, f"{name}: {folder.name} has what cannot be read: {', '.join(unreadable)}")
    tensors = [about for file in weights for about in _tensors(name, file).values()]
    if not weights and (pickled := [file.name for file in folder.iterdir() if file.suffix in PICKLED]):
        problem = f"{name}: {folder.name} has no safetensors, only {', '.join(sorted(pickled))}; save it as safetensors"
        raise BadCheckpoint(folder, problem)
    if missing := _missing(class_name, folder, weights):
        raise BadCheckpoint(folder, f"{name}: {folder.name} {missing}")
    for config in (folder / one for one in CONFIGS if (folder / one).is_file()):
        _json(config, f"{name}: ")
    return Part(
        name=name,
        library=library,
        class_name=class_name,
        folder=folder,
        files=files,
        parameters=sum(about.numel for about in tensors),
        nbytes=sum(about.nbytes for about in tensors),
        precision=_most(tensors),
    )


class _Tensor(Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


def _weights(name: str, folder: Path) -> list[Path]:
    """The files of the main variant: one, or the shards that its index names."""
    for index in (folder / f"{stem}.safetensors.index.json" for stem in STEMS):
        if not index.is_file():
            continue
        named = _json(index, f"{name}: ").get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(shard, str) for shard in named.values()):
            raise BadCheckpoint(folder, f"{name}: {index.name} has no weight_map of file names")
        shards = sorted(set(named.values()))
        if absent := [shard for shard in shards if not (folder / shard).is_file()]:
            raise BadCheckpoint(folder, f"{name}: {index.name} names {', '.join(absent)}, which is not there")
        return [folder / shard for shard in shards]
    return [file for stem in STEMS if (file := folder / f"{stem}.safetensors").is_file()]


def _tensors(name: str, file: Path) -> dict[str, _Tensor]:
    """The header of a safetensors file: eight bytes of length, then JSON."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = opened.read(length) if length <= file.stat().st_size else b""
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        tensors = {key: msgspec.json.decode(raw, type=_Tensor) for key, raw in entries.items() if key != "__metadata__"}
    except msgspec.MsgspecError as error:
        raise BadCheckpoint(file, f"{name}: {file.name} is no safetensors file") from error
    whole = 8 + length + max((about.data_offsets[1] for about in tensors.values()), default=0)
    if file.stat().st_size != whole:
        raise BadCheckpoint(file, f"{name}: {file.name} has {file.stat().st_size} bytes and should have {whole}")
    return tensors


def _most(tensors: Iterable[_Tensor]) -> Precision | None:
    """The precision of most of the bytes."""
    total: dict[str, int] = {}
    for about in tensors:
        total[about.dtype] = total.get(about.dtype, 0) + about.nbytes
    return PRECISIONS.get(max(total, key=total.__getitem__)) if total else None


def _json(file: Path, of: str = "") -> dict[str, Any]:
    """`of` says of which part it is."""
    try:
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, RecursionError, msgspec.DecodeError) as error:
        raise BadCheckpoint(file, f"{of}{file.name}: {error}") from error
    if not isinstance(found, dict):
        raise BadCheckpoint(file, f"{of}{file.name} is not a JSON object")
    return found


assert set(PRECISIONS.values()) == set(get_args(Precision))
