"""What a browser would send for a form that nobody changed."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[str, dict[str, Any]] = {}
        self._form: dict[str, Any] = {}
        self._select = self._text = ""
        self._option: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name") or "", given.get("value")
        if tag == "form":
            self._form = self.forms.setdefault(given.get("action") or "", {})
        elif tag == "input" and name:
            self._form[name] = "checked" in given if given.get("type") == "checkbox" else value or ""
        elif tag == "select":
            self._select = name
        elif tag == "textarea":
            self._text = name
            self._form[name] = ""
        elif tag == "option" and self._select:
            self._option = value
            if "selected" in given or self._select not in self._form:
                self._form[self._select] = value  # None: its text, which follows

    def handle_data(self, data: str) -> None:
        if self._text:
            self._form[self._text] += data
        elif self._select and self._option is None and self._form.get(self._select, "") is None:
            self._form[self._select] = data

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""
        elif tag == "textarea":
            self._text = ""


def read_form(page: bytes, action: str) -> dict[str, Any]:
    """Return the fields of the form of a page that posts to `action`, without empty ones, as its script does."""
    parser = _Forms()
    parser.feed(page.decode())
    return {name: value for name, value in parser.forms[action].items() if value != ""}
