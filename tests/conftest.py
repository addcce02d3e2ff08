"""Every test runs on the CPU, offline, without telemetry. Imported before the libraries that read this."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator

import pytest

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "WANDB_MODE": "disabled",
    "MPLBACKEND": "Agg",
}
os.environ.update(_ENVIRONMENT)
# A GPU is hidden unless its tests are asked for, so that the suite means the same on every machine.
if os.environ.get("TRL_AGENT_TEST_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Tiny models gain nothing from a second thread, and on a busy machine threads that wait for each other crawl.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    # tests, and the programs they start, leave nothing in the user's cache and find nothing there
    os.environ["TRL_AGENT_CACHE"] = tempfile.mkdtemp(prefix="trl_agent_cache_")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ.pop("TRL_AGENT_CACHE", ""), ignore_errors=True)


def _is_local(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket's path
    host = str(address[0])
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Refuse connections that leave this machine, by name."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def check(address: object) -> None:
        if not _is_local(address):
            raise RuntimeError(f"a test tried to reach the network: {address}")

    def guarded_connect(self: socket.socket, address: object) -> None:
        check(address)
        connect(self, address)  # type: ignore[arg-type]

    def guarded_connect_ex(self: socket.socket, address: object) -> int:
        check(address)
        return connect_ex(self, address)  # type: ignore[arg-type]

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", guarded_connect)
    patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    yield
    patch.undo()
