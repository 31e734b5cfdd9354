"""The pages fit together: no two answer the same request or have the same script."""

from __future__ import annotations

from pathlib import Path

from overtone.studio.page_interface import Studio
from overtone.studio.page_list import PAGES


def test_requests_and_scripts_are_unique(tmp_path: Path) -> None:
    pages = [make(Studio(tmp_path, "127.0.0.1")) for make in PAGES]
    routes = [(route.method, route.path) for page in pages for route in page.routes]
    scripts = [path.name for page in pages for path in page.assets]
    assert len(routes) == len(set(routes)) >= 2 and len(scripts) == len(set(scripts)) and pages[0].label == "Home"
