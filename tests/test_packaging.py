"""The wheel holds both packages with their data, and no top-level `envs` to hide a user's own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import trl_agent

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"trl_agent": "trl_agent", "trl_agent_envs": "envs/trl_agent_envs"}


def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_direct_dependency_has_a_tested_version() -> None:
    """constraints.txt pins exactly what pyproject.toml asks for, runtime and extras."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = pyproject()["project"]
    assert isinstance(project, dict)
    extras = project["optional-dependencies"]
    asked = [
        Requirement(line)
        for line in [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins = {canonicalize_name(pin.name): pin for pin in pinned}
    for requirement in asked:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"constraints.txt lacks {requirement.name}"
        (specifier,) = pin.specifier
        assert specifier.operator == "==", f"{pin} is not one exact version"
        assert specifier.version in requirement.specifier, f"{pin} is outside {requirement}"


def test_the_version_is_the_same_in_both_places() -> None:
    project = pyproject()["project"]
    assert isinstance(project, dict)
    assert project["version"] == trl_agent.__version__


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that the tree stays free of build outputs."""
    source = tmp_path_factory.mktemp("source") / "project"
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
    for name in ("trl_agent", "envs"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed, and building with isolation would need the network")
    output = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    done = subprocess.run(
        [*command, "-w", str(output), str(source)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = output.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_both_packages(source: Path, wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    for name, below in PACKAGES.items():
        folder = source / below
        files = [path for path in folder.rglob("*") if path.is_file()]
        expected = {f"{name}/{path.relative_to(folder).as_posix()}" for path in files}
        assert f"{name}/py.typed" in expected
        assert expected <= held, f"package data missing from the wheel: {sorted(expected - held)}"


@pytest.mark.slow
def test_the_wheel_installs_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"trl_agent", "trl_agent_envs"}


@pytest.mark.slow
def test_the_wheel_carries_licence_and_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (licence,) = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    assert b"trl-agent = trl_agent.cli:main" in archive.read(entry_points)


@pytest.mark.slow
def test_the_gym_imports_from_the_wheel_without_torch(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "sys.modules.update(dict.fromkeys(['torch', 'transformers', 'trl', 'trl_agent']))\n"
        f"import trl_agent_envs; assert trl_agent_envs.__path__[0].startswith({str(tmp_path)!r})\n"
        "from trl_agent_envs import AgentEnv\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
