"""Boards and pages are readable in JupyterLab's light and dark theme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.driver import Server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.browser.driver import Browser

LEAST = 4.5
"""Contrast of text by WCAG 2.1, success criterion 1.4.3, from 1 (none) to 21 (black on white)."""
LEAST_COLOURED = 3.0
"""Of words in the colour of a state, which are bold and have a sign beside them."""

# What each piece of text looks like on its ground, with the opacity of all that it stands in.
CONTRASTS = """
cell => {
  const parse = text => {
    const parts = text.match(/[\\d.]+/g).map(Number);
    return { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
  };
  const over = (above, alpha, below) => above.map((c, i) => c * alpha + below[i] * (1 - alpha));
  const light = rgb => {
    const [r, g, b] = rgb.map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = node => {
    const chain = [];
    for (let at = node; at; at = at.parentElement) chain.unshift(at);
    return chain.reduce((below, at) => {
      const { rgb, alpha } = parse(getComputedStyle(at).backgroundColor);
      return over(rgb, alpha, below);
    }, [255, 255, 255]);
  };
  const faded = node => {
    let left = 1;
    for (let at = node; at; at = at.parentElement) left *= getComputedStyle(at).opacity;
    return left;
  };
  const found = [];
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !node.checkVisibility() || node.closest('style, script, svg')) continue;
    const { rgb, alpha } = parse(getComputedStyle(node).color), below = ground(node);
    const shades = [light(below), light(over(rgb, alpha * faded(node), below))].sort();
    found.push({
      text, coloured: Math.max(...rgb) - Math.min(...rgb) > 30,
      contrast: (Math.max(...shades) + 0.05) / (Math.min(...shades) + 0.05),
    });
  }
  return found;
}
"""

CELLS = [
    """
import os, pathlib, time
from nbstate import inspect, launch, log, notebook_launcher
gate = pathlib.Path("gate")
def wait_for_gate():
    while not gate.exists():
        time.sleep(0.01)
def train():
    rank = os.environ["RANK"]
    print("plain text of rank", rank)
    if rank == "2":
        raise ValueError("a failure")
    log(loss=0.5)
    wait_for_gate()
""",
    "job = launch(train, num_processes=2)",
    "inspect(job)",
    "gate.touch(); job.wait()",
    "gate.unlink(); notebook_launcher(train, num_processes=3)",
]


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_all_that_is_shown_is_readable(browser: Browser, tmp_path: Path, theme: str) -> None:
    plugin = "@jupyterlab/apputils-extension:themes"
    with Server(tmp_path, {plugin: {"theme": theme}}) as server:
        server.write("a.ipynb", CELLS)
        page = browser.open("a.ipynb", server)
        page.wait_until(lambda: page.js("() => document.body.dataset.jpThemeName") == theme)
        page.finish(0)
        page.finish(1)
        page.wait_until(lambda: "plain text of rank 1" in page.text(1))
        page.finish(2)
        page.wait_until(lambda: "0.5" in page.text(2))
        assert page.output(2).locator("table").count() == 1  # no empty one where there is no state
        live = contrasts(page, 1) + contrasts(page, 2)
        page.screenshot(f"{theme} board", 1)
        page.screenshot(f"{theme} inspector", 2)
        page.finish(3)
        page.wait_until(lambda: "done" in page.text(1))
        page.finish(4)
        page.wait_until(lambda: "a failure" in page.text(4))
        stays = contrasts(page, 1) + contrasts(page, 4)
        page.screenshot(f"{theme} page", 4)
        page.close()
    assert {"running", "Stop", "plain text of rank 0", "loss"} <= words(live)
    assert {"done", "failed", "stopped", "plain text of rank 0"} <= words(stays)
    assert [piece for piece in live + stays if not is_readable(piece)] == []


def contrasts(page: Any, cell: int) -> list[dict[str, Any]]:
    """Return every piece of text that a cell shows, with its contrast to what is behind it."""
    found: list[dict[str, Any]] = page.output(cell).evaluate(CONTRASTS)
    return found


def words(pieces: list[dict[str, Any]]) -> set[str]:
    return {piece["text"].lstrip("▸✓✗■ ") for piece in pieces}


def is_readable(piece: dict[str, Any]) -> bool:
    return bool(piece["contrast"] >= (LEAST_COLOURED if piece["coloured"] else LEAST))
