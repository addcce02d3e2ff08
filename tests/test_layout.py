"""What a newcomer meets first: the top level, the two commands, and how `make install` finds its Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]

GOOD_PYTHON = """#!/bin/sh
# Understands what make-venv asks of a Python, and writes down how it was called.
case "$*" in
*"-m venv --clear"*)
    echo "$0 created" >>"$LOG"
    mkdir -p "$4/bin"
    printf '#!/bin/sh\\ncase "$*" in *install*) echo "pip $*" >>"$LOG";; esac\\n' >"$4/bin/python"
    chmod +x "$4/bin/python"
    ;;
*ensurepip*) exit "${NO_ENSUREPIP:-0}" ;;
*'"python%d.%d"'*) echo python3.11 ;;
esac
"""
OLD_PYTHON = '#!/bin/sh\n[ "$1" = -V ] && echo "Python 3.9.2" && exit 0\nexit 1\n'
BROKEN_SHIM = "#!/bin/sh\nexit 127\n"


class Machine:
    """A folder with the project's make-venv, and a PATH on which only the named Pythons exist."""

    def __init__(self, folder: Path, programs: dict[str, str]) -> None:
        self.project, self.log = folder / "project", folder / "log"
        (self.project / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "make-venv", self.project / ".ci")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.project)
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name in ("cat", "cksum", "dirname", "id", "mkdir", "chmod", "sh"):
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)
        for name, code in programs.items():
            (self.programs / name).write_text(code)
            (self.programs / name).chmod(0o755)

    def install(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.project / ".ci" / "make-venv")],
            env={"PATH": str(self.programs), "LOG": str(self.log), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def test_install_does_nothing_the_second_time_and_again_when_the_versions_change(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"python3": GOOD_PYTHON})
    assert machine.install().returncode == 0
    created, installed = machine.calls()
    assert created.endswith("/python3 created")
    assert "-e .[dev,tensorboard,gguf] -c constraints.txt" in installed
    assert machine.install().returncode == 0
    assert len(machine.calls()) == 2
    with (machine.project / "constraints.txt").open("a") as constraints:
        constraints.write("# changed\n")
    assert machine.install().returncode == 0
    assert len(machine.calls()) == 3, "the environment is kept and pip runs again"


def test_install_passes_over_an_old_python_and_a_shim_that_does_not_run(tmp_path: Path) -> None:
    programs = {"python3": OLD_PYTHON, "python3.13": BROKEN_SHIM, "python3.12": GOOD_PYTHON}
    machine = Machine(tmp_path, programs)
    assert machine.install().returncode == 0
    assert machine.calls()[0].endswith("/python3.12 created")


def test_install_says_what_is_missing_without_a_python(tmp_path: Path) -> None:
    done = Machine(tmp_path, {"python3": OLD_PYTHON}).install()
    assert done.returncode == 1
    assert "no Python >= 3.11" in done.stderr
    assert "python3 is Python 3.9.2" in done.stderr


def test_install_fetches_the_missing_venv_module_as_root(tmp_path: Path) -> None:
    apt = '#!/bin/sh\necho "apt-get $*" >>"$LOG"\n'
    root = "#!/bin/sh\necho 0\n"
    machine = Machine(tmp_path, {"python3": GOOD_PYTHON, "apt-get": apt})
    (machine.programs / "id").unlink()
    (machine.programs / "id").write_text(root)
    (machine.programs / "id").chmod(0o755)
    done = machine.install(NO_ENSUREPIP="1")
    assert done.returncode == 1, "apt-get changed nothing here, and that is said"
    assert "still cannot create a virtual environment" in done.stderr
    assert machine.calls() == ["apt-get update -qq", "apt-get install -y -qq python3.11-venv"]


@pytest.mark.parametrize("has_apt", [True, False])
def test_install_says_what_to_do_where_it_may_not_fetch_the_venv_module(
    tmp_path: Path, has_apt: bool
) -> None:
    programs = {"python3": GOOD_PYTHON, **({"apt-get": BROKEN_SHIM} if has_apt else {})}
    machine = Machine(tmp_path, programs)
    (machine.programs / "id").unlink()
    (machine.programs / "id").write_text("#!/bin/sh\necho 1000\n")
    (machine.programs / "id").chmod(0o755)
    done = machine.install(NO_ENSUREPIP="1")
    assert done.returncode == 1
    assert ("sudo apt-get install python3.11-venv" if has_apt else "has no ensurepip module") in done.stderr


def test_the_top_level_is_the_promised_one() -> None:
    folders = {"trl_agent", "envs", "recipes", "accelerate_configs", "tests", "docs", ".ci"}
    files = {"pyproject.toml", "README.md", "LICENSE", "Makefile", "CHANGELOG.md", "constraints.txt"}
    assert {name for name in folders if (ROOT / name).is_dir()} == folders
    assert {name for name in files if (ROOT / name).is_file()} == files


@pytest.mark.parametrize("name", ["run", "make-venv"])
def test_ci_scripts_can_be_run(name: str) -> None:
    path = ROOT / ".ci" / name
    assert os.access(path, os.X_OK)
    shell = path.read_text().splitlines()[0].rsplit("/", 1)[-1].split()[-1]
    subprocess.run([shell, "-n", str(path)], check=True, timeout=30)


def test_ci_runs_the_commands_of_the_readme() -> None:
    steps = [line.removeprefix("step ") for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    readme = (ROOT / "README.md").read_text()
    for command in ("make test", "make lint", "make test-slow"):
        assert command in steps
        assert command in readme


def test_pre_commit_needs_no_network() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    assert {hook["language"] for hook in config["repos"][0]["hooks"]} == {"system"}
