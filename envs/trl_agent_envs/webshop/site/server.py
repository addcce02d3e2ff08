"""Serves the site on a socket until it is told to stop."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket

import uvicorn
from starlette.types import ASGIApp

_GRACE_SECONDS = 3


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port` (0: any free one).

    Raises:
        OSError: the port is taken, may not be used, or the host is not of this machine.
        ValueError: the port is not in [0, 65535].
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be in [0, 65535], got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # `strerror` alone would repeat the address
        what = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise OSError(f"cannot listen on {host} port {port}: {what}") from error


def local_names(host: str) -> tuple[str, ...]:
    """Return the names a browser may ask for a site on `host` under.

    For a site that only this machine reaches these are its own names, so that a foreign name that was made to
    lead here reads nothing; else any name.
    """
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    return ("localhost", "127.0.0.1", "[::1]", "::1", host) if local else ("*",)


def address(listening: socket.socket) -> str:
    """Return the address to open in a browser."""
    host, port = listening.getsockname()[:2]
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{local}]:{port}/" if ":" in local else f"http://{local}:{port}/"


def run(app: ASGIApp, listening: socket.socket) -> None:
    """Answer requests until Ctrl-C or a termination signal. Ends quietly; a request under way is finished."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has stopped
        uvicorn.Server(config).run(sockets=[listening])
