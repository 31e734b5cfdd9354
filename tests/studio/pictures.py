"""The pictures of the studio in the docs.

python -m tests.studio.pictures http://127.0.0.1:7859 --run runs/slt --export exports/slt docs/
"""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from tests import browser
from tests.recipes.voice_clone.picture import MOST, small


def list_pages(run: str, export: str) -> dict[str, str]:
    """File name → address of the page that it shows."""
    return {
        "studio_home.png": "/",
        "studio_train.png": "/train",
        "studio_run.png": f"/run?run={quote(run)}",
        "studio_use.png": f"/use?model={quote(export)}",
    }


def take(url: str, pages: dict[str, str], folder: Path) -> None:
    """Write a picture of the upper part of each page."""
    with sync_playwright() as tools, browser.open_view(tools, viewport={"width": 1000, "height": 720}, device_scale_factor=1.25) as view:
        for name, address in pages.items():
            view.goto(url + address)
            view.wait_for_timeout(1000)
            content = small(view.screenshot())
            assert len(content) <= MOST, (name, len(content))
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("url")
    options.add_argument("folder", type=Path)
    options.add_argument("--run", default="runs/slt")
    options.add_argument("--export", default="exports/slt")
    given = options.parse_args()
    take(given.url, list_pages(given.run, given.export), given.folder)
