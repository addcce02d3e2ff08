"""What the sub-commands of `trl-agent webshop` share: the options that say which shop it is, and how they fail."""

from __future__ import annotations

import argparse
import sys


def add_data_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data_dir", help="folder of WebShop's data files (default: the embedded catalogue)"
    )


def add_goals(command: argparse.ArgumentParser) -> None:
    command.add_argument("--goals", choices=["synthetic", "human"], default="synthetic", help="which goals")


def add_compat(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--compat",
        choices=["strict", "original"],
        default="strict",
        help="'original' keeps the original's faults (default: strict)",
    )


def add_observation_mode(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--observation_mode",
        choices=["text", "text_rich"],
        default="text",
        help="what the prompts of step records show, as the recipes' flag (default: text)",
    )


def failed(command: str, error: object) -> int:
    """Say in one line what went wrong. Returns the exit status."""
    sys.stderr.write(f"trl-agent webshop {command}: {error}\n")
    return 1
