"""Chromium for tests of pages: what it reports, and how a page looks at the widths of a desk and of a phone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--autoplay-policy=no-user-gesture-required"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)
WIDTHS = (1280, 390)

SPILLED = """() => {
  const width = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")].filter((one) => {
    const { left, right, width: own } = one.getBoundingClientRect();
    return own > 0 && (right > width + 1 || left < -1) && !one.closest(".scroll, .hidden");
  }).map((one) => one.outerHTML.slice(0, 80));
}"""
"""Elements that are wider than the window, except in a region that scrolls."""
CUT = """() => [...document.querySelectorAll("button, th, td, label, summary, h1, h2, p, a")].filter((one) => one.offsetParent
  && !one.closest(".scroll, .hidden") && getComputedStyle(one).display !== "inline" && one.scrollWidth > one.clientWidth + 1
).map((one) => one.outerHTML.slice(0, 80))"""
"""Elements whose text is cut."""
UNNAMED = """() => [...document.querySelectorAll("input:not([type=hidden]), select, textarea, button, audio, img, a")].filter((one) => {
  const named = one.labels?.length || one.ariaLabel || one.getAttribute("aria-labelledby") || one.textContent.trim() || one.alt;
  return !named;
}).map((one) => one.outerHTML.slice(0, 80))"""
"""Controls, pictures and players that a screen reader could not name."""
FAINT = """() => {
  const light = (colour) => {
    const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => [one, ...ancestors(one)].map((e) => getComputedStyle(e).backgroundColor).find((c) => c !== "rgba(0, 0, 0, 0)");
  const ancestors = (one) => (one.parentElement ? [one.parentElement, ...ancestors(one.parentElement)] : []);
  const contrast = (one) => {
    const [low, high] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const speaks = (one) => !one.closest("svg") && [...one.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
  const texts = [...document.querySelectorAll("body *:not(script)")].filter((one) => speaks(one) && one.offsetParent && !one.disabled);
  return [texts.length, texts.filter((one) => contrast(one) < 4.5).map((one) => one.textContent)];
}"""
"""How many texts there are, and those with less contrast than WCAG 2 (AA) asks of small text."""


@contextmanager
def open_view(tools: Any, expected: str = "", flags: Sequence[str] = (), **context: Any) -> Iterator[Any]:
    """A page in Chromium. Fails at the end if it logged an error, or sent a request to another host than the first.

    `expected`: part of an error that the test causes. `flags`: more words of Chromium's command line."""
    chromium = tools.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *flags])
    view = chromium.new_context(**context).new_page()
    view.set_default_timeout(120_000)
    problems: list[str] = []
    hosts: set[str] = set()
    view.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    view.on("pageerror", lambda error: problems.append(str(error)))
    view.on("request", lambda request: hosts.add(request.url.split("/")[2]) if request.url.startswith("http") else None)
    yield view
    chromium.close()
    problems = [one for one in problems if not expected or expected not in one]
    assert problems == [] and len(hosts) == 1, (problems, hosts)


def wait_until(view: Any, condition: str, value: Any = None) -> None:
    """Wait until a function of `value` in the page returns true. The page's policy forbids what Playwright's own wait does."""
    end = time.monotonic() + 120
    while not view.evaluate(condition, value):
        assert time.monotonic() < end, f"{condition} did not become true"
        view.wait_for_timeout(20)


def check_look(view: Any) -> None:
    """Fails if the page that is shown does not fit a window of `WIDTHS`, or has texts or controls that somebody cannot read."""
    view.wait_for_load_state()  # a click that leads here returns before the page has its style
    size = view.viewport_size
    assert (unnamed := view.evaluate(UNNAMED)) == [], unnamed
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            view.set_viewport_size({"width": width, "height": 800})
            view.emulate_media(color_scheme=scheme)
            found = {name: view.evaluate(script) for name, script in (("spilled", SPILLED), ("cut", CUT))}
            found["faint"] = view.evaluate(FAINT)[1]
            assert found == {name: [] for name in found}, (width, scheme, found)
    view.emulate_media(color_scheme="light")
    view.set_viewport_size(size)
