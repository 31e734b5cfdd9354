"""The site: pages keep their links, the reference is that of the code, and a browser shows it without a request to another host."""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from overtone.__main__ import GROUPS
from overtone.finetune.verb_dispatch import flatten_groups
from tests.browser import CHROMIUM
from workshop.site import __main__ as site
from workshop.site import reference

ROOT = Path(__file__).parents[3]
BUILT = ROOT / "build" / "site"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a page, a script and a folder."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "docs" / "one.md").write_text("# One\n")
    (tmp_path / "tool.py").write_text("print()\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "TARGET", tmp_path / "build" / "docs")
    return tmp_path


def test_links_lead_to_pages_copies_and_paths(tree: Path) -> None:
    page, text = tree / "README.md", "[a](docs/one.md#one) [b](tool.py) [c](recipes) [d](https://example.com) ![f](tool.py)"
    shown = site.convert(page, text, {page, tree / "docs" / "one.md"})
    assert shown == "[a](docs/one.md#one) [b](tool.py) c (`recipes/`) [d](https://example.com) ![f](tool.py)"
    assert (tree / "build" / "docs" / "tool.py").read_text() == "print()\n"


def test_code_is_left_alone_and_labels_with_code_are_links(tree: Path) -> None:
    page, text = tree / "README.md", "```\n[x](gone.md)\n```\n[`recipes/`](recipes) and [`tool`](tool.py)"
    assert site.convert(page, text, {page}) == "```\n[x](gone.md)\n```\n`recipes/` and [`tool`](tool.py)"


@pytest.mark.parametrize("link", ["[a](gone.md)", "![a](recipes)", "[a](../outside.txt)"])
def test_a_link_that_leads_nowhere_stops_the_site(link: str, tree: Path) -> None:
    with pytest.raises(SystemExit, match=r"README\.md: the link to .* leads nowhere"):
        site.convert(tree / "README.md", link, set())


def test_every_guide_is_in_the_navigation() -> None:
    text = yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    named = {*re.findall(r"[\w/.-]+\.md", text)}
    pages = {
        page.relative_to(ROOT).as_posix() for pattern in ("*.md", "docs/*.md", "workshop/lab_book/*.md") for page in ROOT.glob(pattern)
    }
    assert pages <= named
    pages |= {path.relative_to(ROOT).with_suffix(".md").as_posix() for path in ROOT.glob("docs/notebooks/*.ipynb")}
    assert {name for name in named if not name.startswith("reference/")} == pages


def test_a_notebook_is_a_page_with_its_outputs(tree: Path) -> None:
    outputs = [{"output_type": "stream", "text": ["1\n", "2\n"]}, {"output_type": "execute_result", "data": {"image/png": "aGk="}}]
    cells = [{"cell_type": "markdown", "source": ["# One\n", "A text."]}, {"cell_type": "code", "source": ["f()"], "outputs": outputs}]
    (tree / "docs" / "a.ipynb").write_text(json.dumps({"cells": cells}))
    text = site.describe_notebook(tree / "docs" / "a.ipynb")
    assert text.startswith("# One\n\n[Download the notebook](a.ipynb)\n\nA text.\n\n```python\nf()\n```\n\n```text\n1\n2\n```\n\n<img ")
    assert (tree / "build" / "docs" / "docs" / "a_1.png").read_bytes() == b"hi"
    assert site.convert(tree / "docs" / "a.md", text, set()) == text and (tree / "build" / "docs" / "docs" / "a.ipynb").is_file()
    assert site.convert(tree / "docs" / "one.md", "[b](a.ipynb)", set()) == "[b](a.md)"


def test_the_reference_has_every_key_and_field() -> None:
    config, apis = reference.describe_config(), reference.describe_apis()
    for part in ("`train.lr` | float", "## options of llm_dpo", "`options.objective`", "`data.train`"):
        assert part in config
    for part in ("### POST /v1/chat/completions", "### POST /v1/audio/speech", "### POST /v1/audio/transcriptions", "| `messages` |"):
        assert part in apis
    assert "/v1/{path}" not in apis
    assert reference.make_table([("a", "x | y", "two\nlines")]).splitlines()[2] == "| `a` | x \\| y | two lines |"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The built site on a server of this machine."""
    if not (ROOT / ".venv-tools" / "bin" / "mkdocs").exists():
        pytest.skip("SKIPPED: `make .venv-tools/.installed` makes the environment that builds the site")
    made = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(BUILT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
def test_a_browser_shows_it_without_a_request_to_another_host(address: str) -> None:
    if CHROMIUM is None:
        pytest.skip("SKIPPED: `apt-get install chromium` brings the browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (390, 1280):
            page = browser.new_page(viewport={"width": width, "height": 900})
            asked: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            for path in ("", "docs/first_voice/", "reference/commands/", "reference/config/", "reference/python/", "reference/http/"):
                page.goto(address + path)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert [url for url in asked if not url.startswith((address, "data:"))] == []
        page.goto(f"{address}reference/commands/")
        assert {f"overtone {verb}" for verb in flatten_groups(GROUPS)} <= {
            text.removesuffix("¶") for text in page.locator("h3").all_inner_texts()
        }
        page.goto(address)
        page.locator("input[aria-label=Search]").fill("activation checkpointing")
        page.locator(".md-search-result__item").first.wait_for()
        browser.close()


@pytest.mark.slow
def test_a_dead_link_in_a_page_fails_the_build(address: str, tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("docs_dir: build/docs", f"docs_dir: {tmp_path}/docs")
    config = config.replace("site_dir: build/site", f"site_dir: {tmp_path}/site").partition("nav:")[0]
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "docs" / "index.md").write_text("# A\n[gone](gone.md) [there](#nowhere)\n")
    build = [str(ROOT / ".venv-tools" / "bin" / "mkdocs"), "build", "--strict", "--config-file", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 1 and "gone.md" in done.stderr and "nowhere" in done.stderr
