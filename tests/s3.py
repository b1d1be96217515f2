"""An S3 service in this process, on loopback, and the variables that lead there."""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import httpx


@contextmanager
def s3_server() -> Iterator[str]:
    """Its endpoint."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def new_bucket(endpoint: str) -> str:
    name = f"blobs-{secrets.token_hex(4)}"
    httpx.put(f"{endpoint}/{name}").raise_for_status()
    return name


def variables(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
