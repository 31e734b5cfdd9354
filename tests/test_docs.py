"""What the documentation names exists: files, config keys, verbs, targets, launch files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from overtone.__main__ import GROUPS
from overtone.data_prep.clips.quality_rules import PRESETS
from overtone.data_prep.pipeline.clip_selection import DUPLICATE, REVIEWED
from overtone.finetune.config import Config
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.recipe import built_in_recipes, find_recipe, load_recipe
from overtone.finetune.verb_dispatch import flatten_groups

ROOT = Path(__file__).parents[1]
PAGES = {path.relative_to(ROOT).as_posix(): path for pattern in ("*.md", "docs/*.md", "workshop/**/*.md") for path in ROOT.glob(pattern)}
VERBS = flatten_groups(GROUPS)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def test_the_main_pages_exist() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/first_voice.md", "docs/add_a_recipe.md", "workshop/lab_book/proofs.md"} <= set(PAGES)
    assert len(PAGES) >= 40


def test_the_guide_stays_short() -> None:
    """What was measured, tried and proven is in workshop/lab_book/; the reference is generated and not here."""
    words = {name: len(path.read_text(encoding="utf-8").split()) for name, path in PAGES.items() if name.startswith("docs/")}
    assert sum(words.values()) <= 35_000, sorted(words.items(), key=lambda each: -each[1])[:10]


@pytest.mark.parametrize("page", PAGES)
def test_everything_that_a_page_names_exists(page: str) -> None:
    assert list(_unknown(PAGES[page])) == []


def test_names_that_do_not_exist_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading: `x`, and more\n"
        "`finetune/attic.py` and `configs/*.yaml`, `--train.speed 3`, `make coffee`, [this](gone.md)\n"
        "[here](#a-heading-x-and-more), [there](page.md#a-heading)\n"
        "```\novertone fly --config configs/ddp.yaml --train.lr 1\n```\n",
        encoding="utf-8",
    )
    assert list(_unknown(page)) == ["gone.md", "page.md#a-heading", "finetune/attic.py", "--train.speed", "make coffee", "overtone fly"]


def _unknown(page: Path) -> Iterator[str]:
    """What the page names and the repository does not have, in the order of the kinds."""
    text = page.read_text(encoding="utf-8")
    code = "\n".join(CODE.findall(text))
    links = re.findall(r"\]\((?!https?:)([^)]+)", text)
    yield from (link for link in links if not _leads_somewhere(page, link))
    paths = re.findall(r"(?<![\w/.])((?:finetune|data_prep|recipes|configs|docs|tests|workshop|benchmarks)/[\w./*-]*\w)(?![\w<*])", code)
    yield from (path for path in paths if not any(ROOT.glob(path)))
    yield from (f"--{key}" for key in re.findall(r"--([a-z_]+\.[a-z_.]+)", code) if key not in _keys())
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    yield from (f"make {target}" for target in re.findall(r"\bmake ([\w-]+)", code) if target not in targets)
    yield from (f"overtone {verb}" for verb in re.findall(r"(?<!/)\bovertone ([a-z][\w-]*)", code) if verb not in VERBS)


def _leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file exists, and the heading in it that follows `#`."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not target.exists() or not anchor:
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_texts_name_the_command_that_every_installation_has() -> None:
    """`python -m finetune` needs a clone, and `finetune` lacks the verbs of data."""
    former = re.compile(rf"(?<![\w./])(?:finetune|data_prep) (?:{'|'.join(VERBS)})(?![\w-])")
    assert former.search("run `python -m finetune train`") and former.search("data_prep voice") and not former.search("a finetune training")
    folders = ("finetune", "data_prep", "recipes", "configs", "docs", "workshop")
    paths = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml", ".html", ".sh", ".json")
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in [*paths, *ROOT.glob("*.md")]}
    assert len(texts) > 600
    assert [f"{path}: {found[0]}" for path, text in texts.items() for found in former.finditer(text)] == []


def test_the_messages_of_the_troubleshooting_page_are_those_of_the_source() -> None:
    headings = re.findall(r"^\*\*(.*?)\*\*", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    quoted = [
        part.strip(" .,:;?()") for heading in headings for message in re.findall(r"`([^`]+)`", heading) for part in message.split("…")
    ]
    source = "\n".join(_texts_of_source())
    assert len(quoted) >= 20
    assert [part for part in quoted if part not in source and part != "accelerate launch"] == []


def _texts_of_source() -> Iterator[str]:
    """The literal texts of the packages; `…` is where a value of an f-string comes in."""
    for path in sorted(path for package in ("finetune", "data_prep", "recipes") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _keys() -> set[str]:
    """Dotted keys, and the sections that take a mapping."""
    options = [load_recipe(find_recipe(name)).Options for name in built_in_recipes()]
    keys = {key for key, *_ in fields(Config)} | {f"options.{key}" for each in options for key, *_ in fields(each)}
    return keys | {key.rpartition(".")[0] for key in keys}


def test_the_map_of_data_prep_names_every_room() -> None:
    named = set(re.findall(r"`(\w+)/`", (ROOT / "data_prep" / "__init__.py").read_text(encoding="utf-8")))
    rooms = {path.parent.name for path in (ROOT / "data_prep").glob("*/__init__.py")}
    assert len(rooms) >= 10 and named == rooms


def test_every_module_that_a_command_names_runs_something() -> None:
    """A module without an entry would be imported, and nothing else: `make demo` passed like that."""
    globs = ("Makefile", "*.md", "docs/*.md", "recipes/**/*.py", "recipes/**/*.md", "workshop/**/*.py", "workshop/**/*.md")
    texts = [path.read_text("utf-8") for pattern in globs for path in ROOT.glob(pattern)]
    named = {name for text in texts for name in re.findall(r"-m ((?:overtone|finetune|data_prep|tests|workshop)(?:\.\w+)*)", text)}
    files = {name: ROOT / name.replace(".", "/") for name in named}
    entries = {name: next(filter(Path.is_file, (path / "__main__.py", path.with_suffix(".py"))), None) for name, path in files.items()}
    assert len(named) >= 24
    assert [name for name, path in entries.items() if path is None or '__name__ == "__main__"' not in path.read_text("utf-8")] == []


def test_the_page_on_data_preparation_has_every_reason() -> None:
    page = (ROOT / "docs" / "data-preparation.md").read_text(encoding="utf-8")
    reasons = {rule.reason for rules in PRESETS.values() for rule in rules} | {DUPLICATE, REVIEWED}
    assert len(reasons) >= 20 and {reason for reason in reasons if f"`{reason}`" not in page} == set()
