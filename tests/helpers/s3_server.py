"""A local S3 server, moto's."""

import contextlib
import socket
import subprocess
import sys
import time

import pytest


@contextlib.contextmanager
def s3_server(monkeypatch, bucket):
    """Start a server with a bucket, and let this process use it; yield its process and a function that uploads."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket=bucket)
        try:
            yield server, lambda name, data: client.put_object(Bucket=bucket, Key=name, Body=data)
        finally:
            server.kill()
