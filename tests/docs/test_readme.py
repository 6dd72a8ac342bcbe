"""The README's claims that a machine can check."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nbstate import LaunchOptions

if TYPE_CHECKING:
    from tests.kernels import Kernel

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted(path.name for path in ROOT.glob("*.md"))


def test_every_example_shows_what_it_says(kernel: Kernel) -> None:
    examples = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", README, re.DOTALL)
    assert len(examples) == README.count("```python")
    for code, expected in examples:
        cell = kernel.run(code)
        shown = cell.error.evalue if cell.error else cell.stdout + (cell.result or "")
        assert shown.strip() == expected.strip()


def test_every_option_is_told_and_those_in_the_table_have_their_default() -> None:
    told = set(re.findall(r"`(\w+)`", README))
    assert {field.name for field in fields(LaunchOptions)} <= told
    rows = re.findall(r"^\| (`.*?) \| (`.*?) \|", README, re.MULTILINE)
    assert rows
    for names, defaults in rows:
        for name, default in zip(names.split(", "), defaults.split(", "), strict=True):
            actual = getattr(LaunchOptions(), name.strip("`"))
            assert repr(actual).replace("'", '"') == default.strip("`")


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    paths = re.findall(r"`((?:nbstate|tests|notebooks|binder|\.ci)/[\w./]*)`", text)
    assert [path for path in links + paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make (\w+)", (ROOT / page).read_text()))
    assert targets <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
