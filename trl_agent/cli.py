"""The `trl-agent` command. Each sub-command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """The installed version, or "unknown" where the sources are used without an installation."""
    try:
        return version("trl-agent")
    except PackageNotFoundError:
        return "unknown"


def build_parser() -> argparse.ArgumentParser:
    """All sub-commands. Each sets `run`, a function from the parsed arguments to the exit status."""
    parser = argparse.ArgumentParser(
        prog="trl-agent", description="Train language-model agents by reinforcement learning."
    )
    parser.add_argument("--version", action="version", version=f"trl-agent {package_version()}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; `argv` defaults to the process's own arguments. Returns the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help(sys.stderr)
        return 2
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
