"""Finds the recording that a name refers to, in a table or in the name of a transcript.

A name as it is written comes first. Otherwise a name fits that differs in one of the ways in which programs change names: the Unicode form
of its letters (macOS writes é as two characters), case, another ending, percent-encoding, the address of a file in Label Studio, and the
eight digits that it writes before an uploaded file. Folders that both the name and the recording have must be equal.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

from overtone.data_prep.audio.stream_reader import EXTENSIONS, FILM_EXTENSIONS
from overtone.data_prep.recordings.invisible_characters import HIDDEN
from overtone.finetune.errors import format_count

SOUND_ENDINGS = frozenset({*EXTENSIONS, *FILM_EXTENSIONS})
AS_WRITTEN, NO_ENDING = "as written", "by name without ending"
TRIVIAL = frozenset({AS_WRITTEN, NO_ENDING})
"""Rules that need not be reported."""
OTHER_ENDING, UNICODE, CASE = "with another ending", "by Unicode form", "regardless of case"
ADDRESS, PERCENT, UPLOAD = "by address", "percent-encoded", "without Label Studio's prefix"
LOCAL_FILE = re.compile(r"[?&]d=([^&#]+)")
"""`/data/local-files/?d=wavs/a.wav`: a file in Label Studio's local storage."""
UPLOADED = re.compile(r"[0-9a-f]{8}-(.+)")
"""`1a2b3c4d-a.wav`: an upload to Label Studio."""
LEAST_SIMILARITY = 0.6
"""Minimum similarity of the nearest name, by difflib."""


class NameRank(NamedTuple):
    """Rank of a recording for a name: a lower rank fits better."""

    changed: bool
    """True if name and recording are written differently."""
    partial: bool
    """True if one of them has more folders."""
    unshared: int
    """Minus the number of folders that both have."""


class RecordingMatch(NamedTuple):
    """A recording that a name fits, and the rule: several are joined by commas."""

    recording: Path
    rule: str
    rank: NameRank


class _NameForm(NamedTuple):
    rules: tuple[str, ...]
    """Rules by which parts were removed or decoded, in order."""
    parts: tuple[str, ...]
    """Folders and file name."""


class _Recording(NamedTuple):
    path: Path
    folders: tuple[str, ...]


def has_sound_ending(name: str) -> bool:
    stem, dot, ending = name.rpartition(".")
    return bool(stem) and f"{dot}{ending}".lower() in SOUND_ENDINGS


def strip_ending(name: str) -> str:
    """Return a name without a well-known ending: `a.wav` → `a`, `a.b` → `a.b`."""
    return name.rpartition(".")[0] if has_sound_ending(name) else name


def split_name(name: str) -> tuple[str, ...]:
    """`.\\clips\\a.wav` → (`clips`, `a.wav`); a drive letter is a folder of another machine."""
    path = PurePosixPath(name.strip().replace("\\", "/"))
    return tuple(part for part in path.parts if part not in ("/", "//", ".", "..")) or (name,)


class RecordingNames:
    """The names of the recordings under a folder."""

    def __init__(self, folder: Path, recordings: Iterable[Path]) -> None:
        self._by_name: dict[str, list[_Recording]] = defaultdict(list)
        self._paths = [path for path in recordings if path.is_relative_to(folder)]
        for path in self._paths:
            one = _Recording(path, path.relative_to(folder).parts[:-1])
            for key in {_fold(each) for stem in (path.name, strip_ending(path.name), path.stem) for each in (stem, _name_upload(stem))}:
                self._by_name[key].append(one)

    def find(self, name: str) -> list[RecordingMatch]:
        """Return the recordings that a name fits best; several if it fits them equally well."""
        found: dict[Path, RecordingMatch] = {}
        for form in _list_forms(name):
            keys = dict.fromkeys(_fold(each) for each in (form.parts[-1], strip_ending(form.parts[-1])))
            for one in (one for key in keys for one in self._by_name.get(key, ())):
                match = _compare(form, one)
                if match is not None:
                    found.setdefault(one.path, match)
        least = min((match.rank for match in found.values()), default=None)
        return [match for match in found.values() if match.rank == least]

    def find_nearest(self, name: str, among: Container[Path]) -> str:
        """Return the file name of the recording, one of `among`, that is spelled most like a name; empty without a similar one."""
        names = {_fold(strip_ending(path.name)): path.name for path in self._paths if path in among}
        near = get_close_matches(_fold(strip_ending(split_name(name)[-1])), names, 1, LEAST_SIMILARITY)
        return names[near[0]] if near else ""


def format_rules(what: str, rules: Counter[str]) -> str:
    """Format the counts of rules as `7 transcripts found: 5 as written; 2 by Unicode form`."""
    counts = "; ".join(f"{count} {rule}" for rule, count in sorted(rules.items(), key=lambda item: (-item[1], item[0])))
    return f"{format_count(rules.total(), what)} found: {counts}"


def are_one_name(first: Path, second: Path) -> bool:
    """Return whether two recordings differ in a well-known ending only: the same sound in two formats, as a rule."""
    return first.with_name(strip_ending(first.name)) == second.with_name(strip_ending(second.name))


def _list_forms(name: str) -> Iterator[_NameForm]:
    """Yield the name as it is written, then without what programs add to it."""
    forms = [_NameForm((), split_name(name))]
    if local := LOCAL_FILE.search(name):
        forms.append(_NameForm((ADDRESS,), split_name(unquote(local[1], errors="surrogateescape"))))
    elif "://" in name or name.startswith("/data/"):
        forms.append(_NameForm((ADDRESS,), split_name(re.split("[?#]", name)[0])))
    if "%" in name:
        forms += [_NameForm((*form.rules, PERCENT), split_name(unquote("/".join(form.parts), errors="surrogateescape"))) for form in forms]
    for form in list(forms):
        if uploaded := UPLOADED.fullmatch(form.parts[-1]):
            forms.append(_NameForm((*form.rules, UPLOAD), (uploaded[1],)))  # its folder is one of Label Studio's
    yield from forms


def _compare(form: _NameForm, one: _Recording) -> RecordingMatch | None:
    """Return the match of a form of a name with a recording; None if it does not fit."""
    *folders, last = form.parts
    shared = min(len(folders), len(one.folders))
    own, given = one.folders[len(one.folders) - shared :], tuple(folders[len(folders) - shared :])
    names = one.path.name, strip_ending(one.path.name), one.path.stem
    for change, rule in ((_keep, ""), (_compose, UNICODE), (_fold, CASE)):
        if UPLOAD in form.rules:
            endings = _compare_last(change(_name_upload(last)), *(change(_name_upload(each)) for each in names))
        else:
            endings = _compare_last(change(last), *map(change, names))
        if endings and tuple(map(change, own)) == tuple(map(change, given)):
            rules = [each for each in (*form.rules, rule, endings if endings == OTHER_ENDING else "") if each]
            whole = len(folders) == len(one.folders)
            return RecordingMatch(one.path, ", ".join(rules) or endings, NameRank(bool(rules), not whole, -shared))
    return None


def _compare_last(given: str, full: str, stem: str, bare: str) -> str:
    """Return the rule by which a name fits a file; empty if it does not fit. `full`: the name of the file; `stem`: that without a
    well-known ending; `bare`: that without any ending."""
    if given == full:
        return AS_WRITTEN
    if given in (stem, bare):
        return NO_ENDING
    has_other_ending = strip_ending(given) in (stem, bare) and not (stem != full and given.lower() == full.lower())
    return OTHER_ENDING if has_other_ending else ""


def _keep(text: str) -> str:
    return text


def _compose(text: str) -> str:
    """Return a name in one Unicode form, without the invisible characters and special spaces that come with copied names."""
    return unicodedata.normalize("NFC", HIDDEN.sub("", text).replace("\u00a0", " "))


def _fold(text: str) -> str:
    return _compose(_compose(text).casefold())


def _name_upload(name: str) -> str:
    """Return a file name as Label Studio stores an upload: without spaces and most punctuation."""
    return re.sub(r"[^-\w.]", "", _compose(name).strip().replace(" ", "_"))
