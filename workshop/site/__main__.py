"""Gather the pages of the site in build/docs, for `mkdocs build`.

The pages keep their places below the repository, so their links among each other hold. A file that a page links and that is no page (a
script, a picture, a sound) is copied; a link to a folder, and to a file outside of the site, becomes its path as text. A notebook becomes a
page with its cells and outputs, and is copied beside it.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

from workshop.site import reference

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "build" / "docs"
PAGES = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "workshop/README.md", "workshop/lab_book/*.md",
    "workshop/demo_models/README.md", "workshop/benchmarks/results/*.md",
)  # fmt: skip
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
BLOCK = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    pages = sorted(page for pattern in PAGES for page in ROOT.glob(pattern))
    for page in pages:
        write(TARGET / page.relative_to(ROOT), convert(page, page.read_text(encoding="utf-8"), {*pages}))
    for notebook in ROOT.glob("docs/notebooks/*.ipynb"):
        page = notebook.with_suffix(".md")
        write(TARGET / page.relative_to(ROOT), convert(page, describe_notebook(notebook), {*pages}))
    for name, text in reference.list_pages():
        write(TARGET / "reference" / name, text)
    (TARGET / "docs" / "studio_home.png").write_bytes((ROOT / "docs" / "studio_home.png").read_bytes())  # linked by an HTML element


def convert(page: Path, text: str, pages: set[Path]) -> str:
    """The text of a page with links that lead somewhere on the site; copies what they lead to. Blocks of code are left as they are."""
    parts = BLOCK.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(lambda found: change_link(page, found, pages), part) for part in parts)


def describe_notebook(path: Path) -> str:
    """A notebook as Markdown: texts, code, and what the cells printed. Writes its pictures beside the page."""
    parts = list[str]()
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        parts += [show_output(output, path.with_name(f"{path.stem}_{number}.png")) for output in cell["outputs"]]
    title, rest = parts[0].partition("\n")[::2]
    return "\n\n".join([title, f"[Download the notebook]({path.name})", rest.strip(), *parts[1:]]) + "\n"


def show_output(output: dict[str, Any], picture: Path) -> str:
    """An output of a cell as Markdown: its picture, or else its text."""
    data = output.get("data", {})
    if "image/png" in data:
        copy = TARGET / picture.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(base64.b64decode("".join(data["image/png"])))
        return f'<img src="../{picture.name}" alt="">'
    text = "".join(output.get("text", data.get("text/plain", ()))).rstrip()
    return f"```text\n{text}\n```"


def change_link(page: Path, found: re.Match[str], pages: set[Path]) -> str:
    """A link of a page as the site can follow it."""
    mark, label, target, _ = found.groups()
    path = (page.parent / target).resolve()
    if path in pages:
        return found[0]
    if path.suffix == ".ipynb" and path.with_suffix(".md") != page:
        return found[0].replace(".ipynb", ".md")
    if path.is_file() and path.is_relative_to(ROOT):
        copy = TARGET / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        return found[0]
    if not path.is_dir() or mark:
        raise SystemExit(f"{page.relative_to(ROOT)}: the link to {target} leads nowhere")
    return label if label.startswith("`") else f"{label} (`{path.relative_to(ROOT).as_posix()}/`)"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
