"""A report is shown without trust: only the script of reports runs, in an origin of its own, and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from overtone.data_prep.pages.report_page import FOLDER
from tests.asgi import App
from tests.studio.test_folder_content import write_dataset


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data")
    return tmp_path


def test_the_policy_admits_the_script_of_reports_alone(app: App, tmp_path: Path) -> None:
    assert app.ask("GET", "/report", query=b"folder=data").status == 404
    (tmp_path / "data" / "report.html").write_text("<script>alert(1)</script>")
    answer = app.ask("GET", "/report", query=b"folder=data")
    policy = answer.headers["content-security-policy"]
    digest = base64.b64encode(hashlib.sha256((FOLDER / "report_page.js").read_bytes()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy and policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "connect-src" not in policy and "allow-same-origin" not in policy and answer.headers["x-content-type-options"] == "nosniff"


def test_a_link_is_not_followed(app: App, tmp_path: Path) -> None:
    (tmp_path / "data" / "report.html").symlink_to("/etc/passwd")
    answer = app.ask("GET", "/report", query=b"folder=data")
    assert answer.status == 400 and b"root:" not in answer.body
