"""The files that a page's server sends to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette

from overtone.finetune.pages import page_assets
from tests.asgi import App


@pytest.fixture
def app(tmp_path: Path):
    (tmp_path / "own_page.js").write_text("const é = 1;")
    (tmp_path / "secret.js").write_text("secret")
    app = App(Starlette(routes=[page_assets.serve_assets(tmp_path / "own_page.js")]))
    (tmp_path / "own_page.js").write_text("another version")
    yield app
    app.close()


def test_only_the_listed_files_are_sent_as_they_were_at_the_start(app: App) -> None:
    own = app.ask("GET", "/assets/own_page.js")
    assert (own.status, own.body.decode(), own.headers["content-type"]) == (200, "const é = 1;", "text/javascript; charset=utf-8")
    assert app.ask("GET", "/assets/page.css").headers["content-type"] == "text/css; charset=utf-8"
    assert app.ask("GET", "/assets/page.js").status == 200
    for other in ("secret.js", "page_templates.html", "../page.js", ""):
        assert app.ask("GET", f"/assets/{other}").status == 404


def test_the_guard_admits_no_other_names() -> None:
    for path in ("/assets/page.css", "/assets/own_page.js"):
        assert page_assets.ROUTE.matches("GET", path) and page_assets.ROUTE.matches("HEAD", path)
    for path in ("/assets/../page.css", "/assets/.css", "/assets/page.html", "/assets/a/page.css", "/assets/page.css%00"):
        assert not page_assets.ROUTE.matches("GET", path)


def test_no_file_of_a_page_names_another_server() -> None:
    for path in (*page_assets.SHARED, *page_assets.FOLDER.parents[1].glob("*/**/*_page.js")):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text and "@import" not in text and "eval(" not in text, path
