"""Find the conversation files in the given files and folders, and give each a unique display name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from overtone.data_prep.chats import whatsapp_export
from overtone.data_prep.dataset_split_selection import OTHER_SPLITS, choose_splits
from overtone.data_prep.hub_dataset_download import NO_DATA, download_dataset_files
from overtone.finetune.errors import UserError
from overtone.finetune.storage.strict_json import one_line, read_object
from overtone.finetune.terminal import print_line

LINES, DOCUMENT, COMMAS, TABS, PARQUET, DATASET, WHATSAPP = "jsonl", "json", "csv", "tsv", "parquet", "dataset", "whatsapp"
TEXT = "text"
KINDS = {".jsonl": LINES, ".ndjson": LINES, ".json": DOCUMENT, ".csv": COMMAS, ".tsv": TABS, ".parquet": PARQUET}
"""Suffix → file kind."""
GZIP = ".gz"
EXPORTS = (".txt", ".zip")
"""Suffixes of chats that WhatsApp exported, if their content is one."""
TEXTS = (".txt", ".md")
"""Suffixes of documents, which are read as raw text only."""
COMPRESSED = {GZIP, ".zst", ".xz", ".bz2", ".lz4", ".br", ".zip"}
KNOWN = (
    f"known are {', '.join(KINDS)}, all but the last also with {GZIP}, folders that `datasets` saved, and chats that WhatsApp exported "
    f"({', '.join(EXPORTS)})"
)
HUB_FILES = tuple(f"*{suffix}{packed}" for suffix in KINDS for packed in ("", GZIP))
"""Files that are downloaded from a dataset on the hub."""
AGAIN = "that had been read already"


@dataclass(frozen=True)
class ChatSource:
    """One file, or one split of a saved dataset."""

    path: Path
    name: str
    """Display name: path from the parent of the command-line argument, with more parents if needed to be unique."""
    kind: str


@dataclass(frozen=True)
class FoundRow:
    """One row, or the reason why it cannot be read."""

    place: str
    """name:line, or name:row in formats without lines; counted from 1."""
    row: dict[str, object] | None
    problem: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Kind of what was skipped since the row before → count."""


@dataclass
class FoundSources:
    """Sources to read, and what is skipped."""

    sources: list[ChatSource]
    skipped: Counter[str]
    """Kind of skipped entries in folders → count."""


class _Candidate(NamedTuple):
    path: Path
    """Path for opening and for error messages."""
    absolute: Path
    shortest: int
    """Minimum number of last parts of `absolute` in the display name."""
    kind: str


@dataclass
class _Search:
    raw: bool = False
    """True if documents are read, and no exported chats."""
    found: list[_Candidate] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """Real paths seen so far: stops link loops, and reads a file with two names once."""
    skipped: Counter[str] = field(default_factory=Counter)


def download_chats(dataset: str, configs: Sequence[str], splits: Sequence[str]) -> list[Path]:
    """Return the path itself, if it exists or is not a hub name; or the files of a dataset on the hub, downloaded: those of `splits`, or of
    its only training split. Files of other splits are reported and not read. `configs`: its configurations to read. Raises `UserError`."""
    found = download_dataset_files("source", dataset, HUB_FILES, configs)
    if found is None:
        if flag := next((flag for flag, given in (("--config", configs), ("--split", splits)) if given), None):
            raise UserError(f"{flag} chooses a part of a dataset on the hub, and {dataset} is a path; give the files to read instead")
        return [Path(dataset)]
    known = list(dict.fromkeys(file.split for file in found))
    training = [split for split in known if not OTHER_SPLITS.search(split)]
    wanted = choose_splits("source", dataset, known if splits else training, splits)
    other = [file.name for file in found if file.split not in wanted]
    if other:
        print_line(f"{dataset}: not read, since they are not of the split {', '.join(wanted) or 'train'}: {', '.join(other)}")
    if len(other) == len(found):
        raise UserError(
            f"source {dataset}: the dataset on the hub has no training files; choose with --split NAME, or download the files to read"
        )
    return [file.path for file in found if file.split in wanted]


def find_sources(places: list[Path], raw: bool = False) -> FoundSources:
    """Find sources in the order given, within folders by name. `raw`: documents too, and no exported chats. Raises `UserError` for a place
    without sources.

    The name and kind of a link come from the link itself: the cache of the model hub links to files without a suffix.
    """
    search = _Search(raw)
    for place in places:
        try:
            _search_place(place, search)
        except OSError as error:
            raise UserError(f"{place} cannot be read ({one_line(error)})") from None
    names = _make_unique_names([each.absolute for each in search.found], [each.shortest for each in search.found])
    sources = [ChatSource(each.path, name, each.kind) for each, name in zip(search.found, names, strict=True)]
    return FoundSources(sources, search.skipped)


def _search_place(place: Path, search: _Search) -> None:
    if not os.path.lexists(place):
        raise UserError(f"{place} does not exist; give files ({', '.join((*KINDS, *(TEXTS if search.raw else ())))}) or folders of them")
    here = _Search(search.raw, seen=search.seen)
    # Links in parent folders are resolved; the name of the place itself is kept.
    has_name = place.name not in ("", "..")
    root = Path(os.path.realpath(place.parent), place.name) if has_name else Path(os.path.realpath(place))
    for path in _walk_files(place, here):
        if path != place and path.name in NO_DATA:
            here.skipped[path.name] += 1
            continue
        for each, kind in _list_readable(path, here):
            below = each.relative_to(place)
            here.found.append(_Candidate(each, root / below, len(below.parts) + 1, kind))
    if not here.found and not here.skipped[AGAIN]:
        others = f" ({format_counts(here.skipped)})" if place.is_dir() and here.skipped else ""
        hint = "; decompress it first" if place.suffix.lower() in COMPRESSED else ""
        raise UserError(f"{place} holds nothing to read{others}; {KNOWN}{hint}")
    search.found += here.found
    search.skipped += here.skipped


def _walk_files(place: Path, search: _Search) -> Iterator[Path]:
    """Yield a file itself, or the files and saved datasets below a folder. Hidden entries are counted and skipped."""
    waiting = [place]
    while waiting:
        path = waiting.pop()
        if not path.is_dir() or detect_kind(path, search.raw):
            yield path
        elif _mark_seen(path, search):
            entries = sorted(path.iterdir(), reverse=True)
            waiting += [entry for entry in entries if not entry.name.startswith(".")]
            search.skipped.update("hidden" for entry in entries if entry.name.startswith("."))


def _mark_seen(path: Path, search: _Search) -> bool:
    real = os.path.realpath(path)
    if real in search.seen:
        search.skipped[AGAIN] += 1
        return False
    search.seen.add(real)
    return True


def _list_readable(path: Path, search: _Search) -> Iterator[tuple[Path, str]]:
    """Yield (path, kind) of a readable file or of each split of a saved dataset."""
    kind = detect_kind(path, search.raw)
    if kind is None:
        suffix = path.suffix.lower()
        search.skipped["".join(path.suffixes[-2:]).lower() if suffix in COMPRESSED else suffix or "without a suffix"] += 1
    elif kind != DATASET and path.exists() and not path.is_file():
        search.skipped["neither file nor folder"] += 1
    else:
        yield from ((each, kind) for each in (_list_splits(path) if kind == DATASET else [path]) if _mark_seen(each, search))


def detect_kind(path: Path, raw: bool) -> str | None:
    """Return the kind of a file or folder; None if it is not read."""
    if path.is_dir():
        is_one = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
        return DATASET if is_one or (path / "dataset_dict.json").is_file() else None
    if raw and path.suffix.lower() in TEXTS:
        return TEXT
    if path.suffix.lower() in EXPORTS and not raw:
        return WHATSAPP if path.is_file() and whatsapp_export.is_exported_chat(path) else None
    is_packed = path.suffix.lower() == GZIP
    kind = KINDS.get((path.with_suffix("") if is_packed else path).suffix.lower())
    return None if is_packed and kind == PARQUET else kind


def _list_splits(folder: Path) -> list[Path]:
    """Return the folders of a `DatasetDict`, or the one of a `Dataset`."""
    dictionary = folder / "dataset_dict.json"
    if not dictionary.is_file():
        return [folder]
    splits = read_object(dictionary).get("splits")
    if not isinstance(splits, list) or not all(is_plain_name(split) for split in splits):
        raise UserError(f"{dictionary}: splits must be a list of names of folders beside it, found {splits!r:.60}")
    return [folder / split for split in splits]


def is_plain_name(name: object) -> bool:
    """Return whether `name` is a plain entry name without path separators."""
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _make_unique_names(paths: list[Path], parts: list[int]) -> list[str]:
    """Return the shortest unique suffix of each path, with at least `parts` parts."""
    often = {count: Counter(path.parts[-count:] for path in paths) for count in set(parts)}
    shared = [often[count][path.parts[-count:]] > 1 for path, count in zip(paths, parts, strict=True)]
    longer = [min(count + more, len(path.parts)) for path, count, more in zip(paths, parts, shared, strict=True)]
    if longer != parts:
        return _make_unique_names(paths, longer)
    return [
        os.fsencode("/".join(path.parts[-count:])).decode("utf-8", "backslashreplace") for path, count in zip(paths, parts, strict=True)
    ]


def format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
