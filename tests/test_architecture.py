"""The layers and habits of the package, read from the sources with ast: nothing here imports what it checks.

Layers, from upstream to downstream. A module may import modules of its own layer or further upstream:

    0  trl_agent_envs: the standard library, numpy, gymnasium and one environment's own extra
    1  trl_agent maths: torch and layer 1
    2  what turns episodes into tensors and tensors into losses
    3  trainers, callbacks, adapters
    4  the command line and the recipes
"""

from __future__ import annotations

import ast
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("envs/trl_agent_envs", "trl_agent", "recipes")

LAYER_1 = {"trajectory", "rewards", "advantages", "losses", "schedules"}
LAYER_2 = {
    "chat",
    "action_format",
    "context",
    "rollout",
    "selection",
    "batch",
    "modeling",
    "token_logprobs",
    "small_model",
    "generation",
    "optim",
    "parallel",
    "_compat",
}
LAYER_4 = {"cli", "cli_webshop_eval", "cli_webshop_index", "cli_webshop_options", "cli_webshop_site"}

GYM_BASE = {"numpy", "gymnasium"}
# What each environment may need beyond GYM_BASE. A heavy one is an extra in pyproject.toml.
GYM_EXTRAS = {
    "webshop": {"Stemmer", "rapidfuzz", "spacy", "starlette", "jinja2", "uvicorn"},
    "browser": {"playwright"},
    "miniwob": {"playwright", "miniwob"},
}

FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py"}
COMPAT = "trl_agent/_compat.py"
# Both ends of the pipe between a pool and the worker that it started itself; nothing else may unpickle.
MAY_PICKLE = {"envs/trl_agent_envs/pool_process.py", "envs/trl_agent_envs/pool_worker.py"}
PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
PICKLE_ERRORS = {"PickleError", "PicklingError", "UnpicklingError"}
PRINTS = ("recipes/", "trl_agent/cli.py")
MAY_USE_PRIVATE_OF = {"trl", "transformers"}

# Rough sizes in lines: a longer file is a warning to split it, not a failure.
SOFT_SIZES = {"maths": 150, "env": 250, "recipe": 175, "trainer": 600}
FUNCTION_LINES = 60


@dataclass(frozen=True)
class Import:
    """One imported module (dotted) with the names taken from it; `module` is absolute."""

    module: str
    names: tuple[str, ...]
    line: int

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


def python_files(root: Path) -> list[Path]:
    return sorted(path for source in SOURCES for path in (root / source).rglob("*.py"))


def dotted(root: Path, path: Path) -> list[str]:
    """The module's dotted name as parts, e.g. ["trl_agent", "generation", "protocol"]."""
    relative = path.relative_to(root / "envs" if path.is_relative_to(root / "envs") else root)
    parts = list(relative.with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports_of(root: Path, path: Path, tree: ast.AST) -> Iterator[Import]:
    package = dotted(root, path)
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield Import(module, tuple(alias.name for alias in node.names), node.lineno)
        elif isinstance(node, ast.Call) and called(node) in {"importlib.import_module", "__import__"}:
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield Import(argument.value, (), node.lineno)


def called(node: ast.Call) -> str:
    """The dotted name that a call calls, or "" where it is no plain name."""
    parts: list[str] = []
    function = node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""
    return ".".join([function.id, *reversed(parts)])


def layer_of(parts: list[str]) -> int:
    """The layer of a module of this project. The two packages' own __init__.py count as their last layer."""
    if parts[0] == "trl_agent_envs":
        return 0
    if parts[0] != "trl_agent" or (len(parts) > 1 and parts[1] in LAYER_4):
        return 4
    if len(parts) == 1:
        return 3
    if parts[1] in LAYER_1:
        return 1
    return 2 if parts[1] in LAYER_2 else 3


def imported_layer(root: Path, imported: Import) -> int | None:
    """The layer of an import inside this project, None for anything else.

    `from trl_agent import X` counts as the module X if there is one, else as the package's public face.
    """
    parts = imported.module.split(".")
    if parts[0] not in {"trl_agent", "trl_agent_envs", "recipes"}:
        return None
    if parts == ["trl_agent"]:
        modules = [name for name in imported.names if (root / "trl_agent" / f"{name}.py").exists()]
        return max([layer_of(["trl_agent", name]) for name in modules] or [3])
    return layer_of(parts)


def layer_violations(root: Path, path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    parts = dotted(root, path)
    layer = layer_of(parts)
    for imported in imports_of(root, path, tree):
        target = imported_layer(root, imported)
        if target is not None:
            if target > layer:
                yield imported.line, f"layer {layer} imports {imported.module} of layer {target}"
            continue
        if imported.top in sys.stdlib_module_names:
            continue
        if layer == 0:
            extra = GYM_EXTRAS.get(parts[1], set()) if len(parts) > 1 else set()
            if imported.top not in GYM_BASE | extra:
                yield imported.line, f"the gym may not import {imported.module} here"
        elif layer == 1 and imported.top != "torch":
            yield imported.line, f"layer 1 may import torch and layer 1 only, not {imported.module}"


def private_violations(root: Path, path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    if path.relative_to(root).as_posix() == COMPAT:
        return
    for imported in imports_of(root, path, tree):
        if imported.top not in MAY_USE_PRIVATE_OF:
            continue
        reached = [*imported.module.split("."), *imported.names]
        private = [name for name in reached if name.startswith("_") and not name.endswith("__")]
        if (
            private
            or imported.module.startswith("trl.experimental")
            or reached[:2] == ["trl", "experimental"]
        ):
            yield imported.line, f"private or experimental {'.'.join(reached)} belongs in {COMPAT}"


def habit_violations(root: Path, path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    name = path.relative_to(root).as_posix()
    for imported in imports_of(root, path, tree):
        only_errors = bool(imported.names) and PICKLE_ERRORS.issuperset(imported.names)
        if imported.top in PICKLERS and not only_errors and name not in MAY_PICKLE:
            yield imported.line, f"untrusted data never reaches {imported.top}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = called(node)
        if function in {"eval", "exec", "os.system", "exit", "quit", "os.popen"}:
            yield node.lineno, f"{function}() has no place here"
        if function == "print" and not name.startswith(PRINTS):
            yield node.lineno, "print in library code; use logging or return the text"
        if function == "torch.load" and not has_keyword(node, "weights_only", True):
            yield node.lineno, "torch.load without weights_only=True unpickles what it reads"
        if has_keyword(node, "trust_remote_code", True):
            yield node.lineno, "trust_remote_code=True runs code from a hub"
        if has_keyword(node, "allow_pickle", True):
            yield node.lineno, "allow_pickle=True unpickles what it reads"


def has_keyword(node: ast.Call, name: str, value: object) -> bool:
    return any(
        keyword.arg == name and isinstance(keyword.value, ast.Constant) and keyword.value.value is value
        for keyword in node.keywords
    )


def name_violations(root: Path) -> Iterator[str]:
    if (root / "envs" / "__init__.py").exists():
        yield "envs/__init__.py: envs is a source root, never a package"
    for path in python_files(root):
        if path.name in FORBIDDEN_NAMES:
            yield f"{path.relative_to(root)}: a file has one purpose and is named after it"


def file_violations(root: Path, path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for check in (layer_violations, private_violations, habit_violations):
        for line, message in check(root, path, tree):
            yield f"{path.relative_to(root).as_posix()}:{line}: {message}"


def violations(root: Path) -> list[str]:
    """Every broken rule below `root`, as "file:line: what"."""
    return [
        *name_violations(root),
        *(line for path in python_files(root) for line in file_violations(root, path)),
    ]


def test_the_layers_and_habits_hold() -> None:
    found = violations(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_the_sources_are_read() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in python_files(ROOT)}
    assert {"envs/trl_agent_envs/core.py", "trl_agent/trajectory.py"} <= names


def soft_limit(name: str) -> int:
    stem = name.removeprefix("trl_agent/").removesuffix(".py")
    if stem in LAYER_1:
        return SOFT_SIZES["maths"]
    if name.startswith("recipes/"):
        return SOFT_SIZES["recipe"]
    return SOFT_SIZES["env"] if name.startswith("envs/") else SOFT_SIZES["trainer"]


def test_sizes_are_listed() -> None:
    """Soft: warns of files and functions that outgrew their rough size, and fails only at twice that size."""
    listing, failing = [], []
    for path in python_files(ROOT):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        sizes = [(name, len(text.splitlines()), soft_limit(name))]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                sizes.append((f"{name}:{node.lineno} {node.name}", lines, FUNCTION_LINES))
        listing += [f"{what}: {lines} lines, about {limit}" for what, lines, limit in sizes if lines > limit]
        failing += [what for what, lines, limit in sizes if lines > 2 * limit]
    if listing:
        warnings.warn("larger than their rough size:\n  " + "\n  ".join(listing), stacklevel=1)
    assert not failing, f"more than twice the rough size: {failing}"


PLANTED = {
    "gym imports torch": ("envs/trl_agent_envs/core.py", "import torch"),
    "gym imports the trainer": ("envs/trl_agent_envs/core.py", "from trl_agent.trajectory import Turn"),
    "gym core imports one env's extra": ("envs/trl_agent_envs/core.py", "import rapidfuzz"),
    "gym imports torch inside a function": (
        "envs/trl_agent_envs/core.py",
        "def f():\n    import transformers.models",
    ),
    "gym imports by name": (
        "envs/trl_agent_envs/core.py",
        "import importlib\nimportlib.import_module('torch.nn')",
    ),
    "maths imports numpy": ("trl_agent/losses.py", "import numpy as np"),
    "maths imports layer 2": ("trl_agent/losses.py", "from trl_agent.chat import ChatFormat"),
    "maths imports layer 2 relatively": ("trl_agent/losses.py", "from .batch import collate"),
    "maths imports layer 2 from the package": ("trl_agent/losses.py", "from trl_agent import batch"),
    "layer 2 imports layer 3": ("trl_agent/batch.py", "from trl_agent.ppo_config import AgentPPOConfig"),
    "layer 2 imports layer 3 two dots up": ("trl_agent/generation/x.py", "from ..ppo_trainer import X"),
    "layer 2 imports the public face": ("trl_agent/batch.py", "from trl_agent import AgentPPOTrainer"),
    "layer 3 imports the command line": ("trl_agent/ppo_trainer.py", "import trl_agent.cli"),
    "private import": ("trl_agent/ppo_trainer.py", "from trl.trainer.utils import _private"),
    "private module": ("trl_agent/ppo_trainer.py", "import transformers._hidden.thing"),
    "experimental import": ("trl_agent/ppo_trainer.py", "from trl.experimental.ppo import PPOTrainer"),
    "experimental import from trl": ("trl_agent/ppo_trainer.py", "from trl import experimental"),
    "pickle": ("trl_agent/batch.py", "import pickle"),
    "pickle under another name": ("trl_agent/batch.py", "from pickle import loads, PickleError"),
    "eval": ("trl_agent/batch.py", "eval('1')"),
    "exec": ("recipes/x.py", "exec('1')"),
    "os.system": ("trl_agent/batch.py", "import os\nos.system('ls')"),
    "torch.load": ("trl_agent/checkpoint.py", "import torch\ntorch.load('x')"),
    "print": ("trl_agent/batch.py", "print(1)"),
    "print in the gym": ("envs/trl_agent_envs/core.py", "print(1)"),
    "trust_remote_code": ("recipes/x.py", "load('x', trust_remote_code=True)"),
    "envs is a package": ("envs/__init__.py", ""),
    "utils": ("trl_agent/generation/utils.py", ""),
    "helpers": ("envs/trl_agent_envs/webshop/helpers.py", ""),
    "common": ("recipes/common.py", ""),
}

ALLOWED = {
    "gym base": ("envs/trl_agent_envs/core.py", "import json, numpy.random\nimport gymnasium as gym"),
    "an env's own extra": (
        "envs/trl_agent_envs/webshop/search.py",
        "import rapidfuzz\nfrom ..core import AgentEnv",
    ),
    "maths": (
        "trl_agent/losses.py",
        "import torch\nfrom trl_agent.schedules import X\nfrom .rewards import Y",
    ),
    "layer 2": (
        "trl_agent/batch.py",
        "import numpy\nfrom trl_agent_envs import EnvPool\nfrom .chat import X",
    ),
    "compat": (COMPAT, "from trl.experimental.ppo import PPOTrainer\nfrom transformers.x import _y"),
    "recipe": ("recipes/x.py", "from trl_agent import AgentPPOTrainer\nprint(1)"),
    "cli": ("trl_agent/cli.py", "from trl_agent.ppo_trainer import X\nprint(1)"),
    "naming pickle's errors": ("trl_agent/checkpoint.py", "from pickle import UnpicklingError"),
    "a pool and its own worker": ("envs/trl_agent_envs/pool_worker.py", "import pickle"),
    "safe load": ("trl_agent/checkpoint.py", "import torch\ntorch.load('x', weights_only=True)"),
    "method named eval": ("trl_agent/modeling.py", "model.eval()"),
}


def plant(root: Path, name: str, code: str) -> None:
    """Append `code` to a copy of the project's file, or to a new one."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() and (ROOT / name).exists():
        shutil.copy(ROOT / name, path)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(f"{old}\n\n{code}\n", encoding="utf-8")


@pytest.mark.parametrize(("name", "code"), PLANTED.values(), ids=list(PLANTED))
def test_a_planted_violation_is_found(tmp_path: Path, name: str, code: str) -> None:
    plant(
        tmp_path, "trl_agent/batch.py", ""
    )  # so that `from trl_agent import batch` is known to name a module
    before = set(violations(tmp_path))
    plant(tmp_path, name, code)
    new = set(violations(tmp_path)) - before
    assert len(new) == 1, new
    assert new.pop().startswith(name)


@pytest.mark.parametrize(("name", "code"), ALLOWED.values(), ids=list(ALLOWED))
def test_what_is_allowed_is_not_reported(tmp_path: Path, name: str, code: str) -> None:
    plant(tmp_path, name, code)
    assert violations(tmp_path) == []


def test_one_violation_planted_in_the_whole_project_is_the_one_reported(tmp_path: Path) -> None:
    for path in python_files(ROOT):
        plant(tmp_path, path.relative_to(ROOT).as_posix(), "")
    before = violations(tmp_path)
    plant(tmp_path, "envs/trl_agent_envs/core.py", "from trl_agent import trajectory")
    (new,) = set(violations(tmp_path)) - set(before)
    assert "layer 0 imports trl_agent of layer 1" in new
