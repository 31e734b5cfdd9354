"""The picture of the page in the docs.

python -m tests.recipes.voice_clone.picture http://127.0.0.1:7861 docs/serving.png [--text TEXT] [--clip CLIP]
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

MOST = 200_000
"""Bytes of the picture."""


def take(url: str, text: str, clip: Path | None) -> bytes:
    """PNG of the page after it has spoken, played to the middle. `clip`: the first model clones it."""
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 1000, "height": 700}, device_scale_factor=1.5)
        view.goto(url)
        view.get_by_label("Text", exact=True).fill(text)
        if not view.get_by_label("Model B").input_value():  # one model: its last voice beside its first
            choose_option(view, "#model-b", -1)
            choose_option(view, "#voice-b", -1)
        if clip is not None:
            header = view.get_by_text("Reference clip:")
            header.click()
            view.get_by_label("Clip of 5 to 15 s").set_input_files(clip)
            view.get_by_text(": ready").wait_for()
            header.click()
            choose_option(view, "#model-a", 0)
            choose_option(view, "#voice-a", -1)
        view.get_by_role("button", name="Speak").click()
        view.wait_for_selector("#result-b audio", timeout=300_000)
        view.evaluate("document.querySelectorAll('.result audio').forEach(one => one.currentTime = one.duration * 0.4)")
        view.mouse.move(0, 0)
        view.wait_for_timeout(2000)
        bottom = view.locator("#result-a").bounding_box()
        assert bottom is not None
        shown = {"x": 0, "y": 0, "width": 1000, "height": bottom["y"] + bottom["height"] + 16}
        return view.screenshot(full_page=True, clip=shown)


def choose_option(view: Page, dropdown: str, at: int) -> None:
    view.locator(dropdown).select_option(index=at % view.locator(f"{dropdown} option").count())


def small(picture: bytes) -> bytes:
    """In 256 colours."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("url")
    parser.add_argument("path", type=Path)
    parser.add_argument("--text", default="The dark sailor protects the old bottle near the school.")
    parser.add_argument("--clip", type=Path)
    options = parser.parse_args()
    picture = small(take(options.url, options.text, options.clip))
    assert len(picture) <= MOST, f"{len(picture)} bytes"
    options.path.write_bytes(picture)
    print(f"{options.path}: {len(picture)} bytes")
