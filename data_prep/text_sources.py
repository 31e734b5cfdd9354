"""Which files of conversations there are, and what each is called."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from finetune.errors import UserError
from finetune.strict_json import one_line, read_object

LINES, DOCUMENT, COMMAS, TABS, PARQUET, DATASET = "jsonl", "json", "csv", "tsv", "parquet", "dataset"
KINDS = {".jsonl": LINES, ".ndjson": LINES, ".json": DOCUMENT, ".csv": COMMAS, ".tsv": TABS, ".parquet": PARQUET}
"""Suffix → how such a file is read."""
GZIP = ".gz"
COMPRESSED = {GZIP, ".zst", ".xz", ".bz2", ".lz4", ".br", ".zip"}
KNOWN = f"known are {', '.join(KINDS)}, all but the last also with {GZIP}, and folders that `datasets` saved"
AGAIN = "that had been read already"


@dataclass(frozen=True)
class Source:
    """One file, or one split that `datasets` saved."""

    path: Path
    name: str
    """As it is told: the path from the folder of what was named on the command line, or more of it where two would be the same."""
    kind: str


@dataclass(frozen=True)
class Found:
    """One row, or why there is none."""

    place: str
    """name:line, or name:row where there are no lines; from 1."""
    row: dict[str, object] | None
    problem: str = ""


@dataclass
class Gathered:
    """What there is to read."""

    sources: list[Source]
    passed_over: Counter[str]
    """Kind of what lay in folders and is not read → how many."""


class _Candidate(NamedTuple):
    path: Path
    """As it is opened, and told when it cannot be."""
    absolute: Path
    shortest: int
    """How many of the last parts of `absolute` it is called by, if nothing else is called so."""
    kind: str


@dataclass
class _Search:
    found: list[_Candidate] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """Real paths. Links in a circle end here, and a file with two names is read once."""
    passed_over: Counter[str] = field(default_factory=Counter)


def find(places: list[Path]) -> Gathered:
    """What lies in files and folders: in the order given, folders by name. Raises `UserError` for a place without any.

    A link is called by its own name and is of the kind that its own name says: a hub's cache links to files without a suffix.
    """
    search = _Search()
    for place in places:
        try:
            _look_in(place, search)
        except OSError as error:
            raise UserError(f"{place} cannot be read ({one_line(error)})") from None
    names = _told_apart([each.absolute for each in search.found], [each.shortest for each in search.found])
    sources = [Source(each.path, name, each.kind) for each, name in zip(search.found, names, strict=True)]
    return Gathered(sources, search.passed_over)


def _look_in(place: Path, search: _Search) -> None:
    if not os.path.lexists(place):
        raise UserError(f"{place} does not exist; give files ({', '.join(KINDS)}) or folders of them")
    here = _Search(seen=search.seen)
    root = _absolute(place)
    for path in _below(place, here):
        for each, kind in _readable(path, here):
            below = each.relative_to(place)
            here.found.append(_Candidate(each, root / below, len(below.parts) + 1, kind))
    if not here.found and not here.passed_over[AGAIN]:
        others = f" ({counted(here.passed_over)})" if place.is_dir() and here.passed_over else ""
        raise UserError(f"{place} holds nothing to read{others}; {KNOWN}{_way_out(place)}")
    search.found += here.found
    search.passed_over += here.passed_over


def _way_out(place: Path) -> str:
    return "; decompress it first" if place.suffix.lower() in COMPRESSED else ""


def _absolute(place: Path) -> Path:
    """Links among the folders above are followed; its own name stays."""
    has_name = place.name not in ("", "..")
    return Path(os.path.realpath(place.parent), place.name) if has_name else Path(os.path.realpath(place))


def _below(place: Path, search: _Search) -> Iterator[Path]:
    """A file itself; the files below a folder, and whole folders that `datasets` saved. Hidden ones are counted and passed over."""
    waiting = [place]
    while waiting:
        path = waiting.pop()
        if not path.is_dir() or kind_of(path):
            yield path
        elif _is_new(path, search):
            entries = sorted(path.iterdir(), reverse=True)
            waiting += [entry for entry in entries if not entry.name.startswith(".")]
            search.passed_over.update("hidden" for entry in entries if entry.name.startswith("."))


def _is_new(path: Path, search: _Search) -> bool:
    real = os.path.realpath(path)
    if real in search.seen:
        search.passed_over[AGAIN] += 1
        return False
    search.seen.add(real)
    return True


def _readable(path: Path, search: _Search) -> Iterator[tuple[Path, str]]:
    """The path and its kind if it is to be read; each of its splits, if it has some."""
    kind = kind_of(path)
    if kind is None:
        search.passed_over[_sort_of(path)] += 1
    elif kind != DATASET and path.exists() and not path.is_file():
        search.passed_over["neither file nor folder"] += 1
    else:
        yield from ((each, kind) for each in (_splits(path) if kind == DATASET else [path]) if _is_new(each, search))


def kind_of(path: Path) -> str | None:
    """How something is read; None for what is not."""
    if path.is_dir():
        is_one = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
        return DATASET if is_one or (path / "dataset_dict.json").is_file() else None
    is_packed = path.suffix.lower() == GZIP
    kind = KINDS.get((path.with_suffix("") if is_packed else path).suffix.lower())
    return None if is_packed and kind == PARQUET else kind


def _sort_of(path: Path) -> str:
    """What a file is counted as that is not read."""
    suffix = path.suffix.lower()
    return "".join(path.suffixes[-2:]).lower() if suffix in COMPRESSED else suffix or "without a suffix"


def _splits(folder: Path) -> list[Path]:
    """The folders of a `DatasetDict`, or the one of a `Dataset`."""
    dictionary = folder / "dataset_dict.json"
    if not dictionary.is_file():
        return [folder]
    splits = read_object(dictionary).get("splits")
    if not isinstance(splits, list) or not all(is_plain_name(split) for split in splits):
        raise UserError(f"{dictionary}: splits must be a list of names of folders beside it, found {splits!r:.60}")
    return [folder / split for split in splits]


def is_plain_name(name: object) -> bool:
    """Whether something names an entry of a folder, and nothing elsewhere."""
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _told_apart(paths: list[Path], parts: list[int]) -> list[str]:
    """As few of the last parts of each path, but no fewer than `parts`, as no other path ends with."""
    often = {count: Counter(path.parts[-count:] for path in paths) for count in set(parts)}
    shared = [often[count][path.parts[-count:]] > 1 for path, count in zip(paths, parts, strict=True)]
    longer = [min(count + more, len(path.parts)) for path, count, more in zip(paths, parts, shared, strict=True)]
    if longer != parts:
        return _told_apart(paths, longer)
    return [
        os.fsencode("/".join(path.parts[-count:])).decode("utf-8", "backslashreplace") for path, count in zip(paths, parts, strict=True)
    ]


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
