"""Every command and script in README.md and docs/ runs here, or says why not (see doc_blocks.py)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.doc_blocks import Block, DocError, read_blocks

ROOT = Path(__file__).resolve().parents[1]
# What a reader standing in the project's folder has beside them, and commands may name.
FOLDERS = ("recipes", "accelerate_configs", "benchmarks", "docs")


def pages() -> list[str]:
    found = [ROOT / "README.md", ROOT / "envs" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found if path.exists()]


def blocks_of(page: str) -> list[Block]:
    return read_blocks(ROOT / page, page)


def has_gpu() -> bool:
    if os.environ.get("TRL_AGENT_TEST_GPU") != "1":
        return False
    import torch

    return torch.cuda.is_available()


def run_blocks(page: str, blocks: list[Block], folder: Path, timeout: float) -> None:
    """Write the page's files, then run `blocks`: the python ones as one script, each bash one alone."""
    for name in FOLDERS:
        if (ROOT / name).is_dir():
            (folder / name).symlink_to(ROOT / name)
    for block in blocks_of(page):
        if block.kind == "file":
            path = folder / block.detail
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
    script = "\n".join(block.code for block in blocks if block.language == "python")
    if script:
        (folder / "page.py").write_text(script, encoding="utf-8")
        run(page, [sys.executable, "page.py"], folder, timeout)
    for block in blocks:
        if block.language == "bash":
            run(f"{page}:{block.line}", ["bash", "-euo", "pipefail", "-c", block.code], folder, timeout)


def run(where: str, command: list[str], folder: Path, timeout: float) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), str(ROOT / "envs")]),
        "HOME": str(folder),
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    output = f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert done.returncode == 0, f"{where} failed with {done.returncode}:\n{output}"


@pytest.mark.parametrize("page", pages())
def test_every_block_is_run_or_marked(page: str) -> None:
    for block in blocks_of(page):
        if block.language == "python":
            compile(block.code, f"{page}:{block.line}", "exec")
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "yaml":
            yaml.safe_load(block.code)
        elif block.language == "toml":
            tomllib.loads(block.code)


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}, which does not exist"


@pytest.mark.parametrize("page", pages())
def test_what_is_quick_runs(page: str, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.kind in {"part", "run"}]
    if not blocks:
        pytest.skip("the page has no quick block")
    run_blocks(page, blocks, tmp_path, timeout=120)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", pages())
def test_what_is_slow_runs(page: str, tmp_path: Path) -> None:
    blocks = blocks_of(page)
    slow = [block for block in blocks if block.kind == "slow"]
    if not slow:
        pytest.skip("the page has no slow block")
    if any(block.language == "python" for block in slow):
        slow = [block for block in blocks if block.kind == "slow" or block.kind == "part"]
    run_blocks(page, slow, tmp_path, timeout=800)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", pages())
def test_what_needs_a_gpu_runs(page: str, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.kind == "gpu"]
    if not blocks:
        pytest.skip("the page has no block for a GPU")
    if not has_gpu():
        pytest.skip("needs a GPU and TRL_AGENT_TEST_GPU=1")
    run_blocks(page, blocks, tmp_path, timeout=800)


def flags_by_recipe() -> dict[str, set[str]]:
    """The flags that the pages' commands give to each recipe, in blocks that run and in blocks that do not."""
    found: dict[str, set[str]] = {}
    for page in pages():
        for block in blocks_of(page):
            for line in block.code.replace("\\\n", " ").splitlines():
                command = line.split(" # ")[0]
                for recipe, rest in re.findall(
                    r"(recipes/\w+\.py)(.*)", command if block.language == "bash" else ""
                ):
                    found.setdefault(recipe, set()).update(re.findall(r"--\w+", rest))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "flags"), sorted(flags_by_recipe().items()))
def test_the_recipes_know_the_flags_that_the_pages_give_them(recipe: str, flags: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, recipe, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert flags <= set(re.findall(r"--\w+", done.stdout))


WRONG = {
    "an unmarked bash block": "```bash\nls\n```\n",
    "an unknown language": "```sh\nls\n```\n",
    "no language": "```\nls\n```\n",
    "a marker that is none": "<!-- test: maybe -->\n```bash\nls\n```\n",
    "a skip without a reason": "<!-- test: skip -->\n```bash\nls\n```\n",
    "a file without a path": "<!-- test: file -->\n```python\nx = 1\n```\n",
    "a marker that says too much": "<!-- test: run twice -->\n```bash\nls\n```\n",
    "text between marker and block": "<!-- test: run -->\nThus:\n```bash\nls\n```\n",
    "an open fence": "<!-- test: run -->\n```bash\nls\n",
    "a second block under one marker": "<!-- test: run -->\n```bash\nls\n```\n\n```bash\nls\n```\n",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=list(WRONG))
def test_a_page_with_a_fault_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    with pytest.raises(DocError, match=r"page\.md:\d+: "):
        read_blocks(path, "page.md")


def test_the_blocks_of_a_page_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "Text.\n```python\nx = 1\n```\n<!-- test: skip costs money -->\n\n```bash\nls\n# ```\n```\n"
        "<!-- test: file a/b.py -->\n```python\ny = 2\n```\n~~~text\n```bash\n~~~\n"
    )
    seen = [
        (block.line, block.language, block.kind, block.detail, block.code) for block in read_blocks(path, "p")
    ]
    assert seen == [
        (2, "python", "part", "", "x = 1\n"),
        (7, "bash", "skip", "costs money", "ls\n# ```\n"),
        (12, "python", "file", "a/b.py", "y = 2\n"),
        (15, "text", "plain", "", "```bash\n"),
    ]


def test_a_failing_block_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="here failed with 3"):
        run("here", ["bash", "-c", "exit 3"], tmp_path, timeout=10)
