"""What an admitted append becomes in each table."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from store.admission import Admitted
from store.journal import Appended, Blob, JobRow

Row = dict[str, Any]


def head_rows(admitted: Iterable[Admitted]) -> list[Row]:
    """The last of a stream is where it ends up."""
    heads = {each.append.stream: each.head for each in admitted}
    return [{"stream": stream, **asdict(head)} for stream, head in heads.items()]


def event_rows(admitted: Iterable[Admitted]) -> Iterator[Row]:
    for each in admitted:
        append, epoch = each.append, each.head.epoch
        numbered = enumerate(zip(append.events, each.hashes, strict=True), start=append.expected + 1)
        for version, (event, hash) in numbered:
            yield {
                "stream": append.stream,
                "version": version,
                "epoch": epoch,
                "type": event.type,
                "at": append.at,
                "body": event.body,
                "hash": hash,
            }


def checkpoint_rows(admitted: Iterable[Admitted]) -> list[Row]:
    """A stream has one, the last."""
    saved = {
        each.append.stream: (each.head.version, each.append.checkpoint)
        for each in admitted
        if each.append.checkpoint is not None
    }
    return [{"stream": stream, "version": version, "body": body} for stream, (version, body) in saved.items()]


def key_rows(admitted: Iterable[Admitted]) -> list[Row]:
    return [{"stream": a.append.stream, **asdict(a.append.key)} for a in admitted if a.append.key is not None]


def blob_row(blob: Blob) -> Row:
    return {"digest": blob.digest, "size": len(blob.data), "data": blob.data}


def job_row(row: JobRow) -> Row:
    return asdict(row) | {"metadata": msgspec.json.encode(row.metadata, order="sorted").decode()}


def answers(admitted: Sequence[Admitted], last_position: int) -> list[Appended]:
    """Where the events just inserted ended up: nobody else gives out positions meanwhile, so they have no holes."""
    position = last_position - sum(len(each.append.events) for each in admitted)
    appended = []
    for each in admitted:
        position += len(each.append.events)
        appended.append(Appended(version=each.head.version, position=position if each.append.events else 0))
    return appended
