"""Which stores' logs refer to the bytes of a blob store. Who sweeps for one knows nothing of what the others name."""

from store.blobs.port import Blobs

TENANT = "journal-"


def move_in(blobs: Blobs, journal: str) -> None:
    """The logs of this store refer to bytes here, or are about to. Raises StoreUnavailable."""
    blobs.mark(TENANT + journal)


def others(blobs: Blobs, journal: str) -> set[str]:
    """The other stores of which that has been said. Raises StoreUnavailable."""
    return {mark.removeprefix(TENANT) for mark in blobs.marks() if mark.startswith(TENANT)} - {journal}


def move_out(blobs: Blobs, journal: str) -> None:
    """Its logs are gone for good. Raises StoreUnavailable."""
    blobs.unmark(TENANT + journal)
