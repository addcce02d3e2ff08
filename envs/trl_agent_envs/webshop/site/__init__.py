"""The shop as web pages, for people and for browser agents. Needs the extra `site` (Starlette, Jinja, uvicorn)."""

from .app import Site
from .recorder import Recorder, RecorderError
from .server import address, bind, local_names, run

__all__ = ["Recorder", "RecorderError", "Site", "address", "bind", "local_names", "run"]
