"""Which store an address means: the only place that knows all kinds."""

import os
from datetime import timedelta
from pathlib import Path

from store.blobs.files import FileBlobs
from store.blobs.packs import PackBlobs
from store.blobs.port import Blobs
from store.blobs.tiers import Tiers
from store.errors import BadStoreUrl

ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")


def open_blobs(where: str | Path) -> Blobs:
    """A folder, or s3://bucket/prefix. Nothing is made or asked before the first call. Raises BadStoreUrl."""
    scheme, separator, rest = str(where).partition("://")
    if not separator:
        return _folder(Path(where))
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise BadStoreUrl(f"{where}: blobs lie in a folder or at s3://bucket/prefix")
    return _bucket(bucket, prefix.strip("/"))


def _folder(root: Path) -> Blobs:
    return Tiers(PackBlobs(root / "packs"), FileBlobs(root))


def _bucket(bucket: str, prefix: str) -> Blobs:
    """Endpoint, region and credentials are the usual AWS_* variables."""
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    from store.blobs.objects import ObjectBlobs

    try:
        store = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS),
                "connect_timeout": timedelta(seconds=5),
                "timeout": timedelta(minutes=5),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
        )
    except (BaseError, ValueError) as error:
        raise BadStoreUrl(f"s3://{bucket}/{prefix}: {error}") from error
    return ObjectBlobs(store)
