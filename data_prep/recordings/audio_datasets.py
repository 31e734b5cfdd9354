"""Datasets with sound as recordings: folders that `datasets` saved, Parquet files, and repositories of the hub, by name.

Rows hold the bytes of a file (`audio: {bytes, path}`) and usually a text. They are written to `data/me.recordings/NAME/`, one file for each
row, with a metadata.jsonl that `--transcripts` reads; from there on they are like any other folder of recordings. A dataset that has not
changed since is not written again. Nothing in a dataset is run, and no path in it leads out of its folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overtone.data_prep.audio.stream_reader import EXTENSIONS
from overtone.data_prep.chats.arrow_tables import list_data_files, read_streams
from overtone.data_prep.chats.chat_file_search import is_plain_name
from overtone.data_prep.dataset_split_selection import TRAIN_SPLIT, choose_configurations, choose_splits, list_configuration_folders
from overtone.data_prep.hub_dataset_download import download_dataset_files
from overtone.data_prep.recordings.named_column_tables import TEXT_COLUMNS, find_columns
from overtone.data_prep.recordings.recording_files import SOUND_ENDINGS
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.storage.model_resolver import is_hub_name
from overtone.finetune.storage.referenced_files import find_file
from overtone.finetune.terminal import print_line

if TYPE_CHECKING:
    import pyarrow

OPTION = "recordings"
TABLES = "metadata.csv", "metadata.jsonl"
HUB_FILES = ("*.parquet", *(f"*{ending}" for ending in EXTENSIONS), *(f"*{name}" for name in TABLES))
ORIGIN = "dataset.json"
"""File in the folder of written recordings that identifies the dataset they are from."""
FORM = 1
"""Version of the written recordings: increase it when the code writes others for the same dataset."""
NO_SPLITS = ("data", "default", "parquet")
"""Names of folders of Parquet files that are not splits."""
NO_CLASS = -1
"""Value of a ClassLabel column in a row without a class."""
LARGEST_SOUND = 2**31
"""Bytes of a sound file that a row names, 2 GiB: three hours of WAV."""
ROWS_AT_ONCE = 32
"""Rows of a Parquet file in memory."""
MAGIC = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3", b"\xff\xfb": ".mp3", b"\xff\xf3": ".mp3", b"FORM": ".aiff"}


class DatasetPart(NamedTuple):
    """A file, or the files, of one split."""

    split: str
    path: Path
    """A Parquet file, or a folder of Arrow streams."""
    root: Path
    """Folder that paths in the rows are relative to."""


def is_audio_dataset(place: str | Path) -> bool:
    """Return whether a command-line argument is a dataset with sound, and not a folder of recordings: the name of one on the hub, a Parquet
    file, a folder that `datasets` saved, or one with Parquet files and no recordings, also in its sub-folders."""
    path = Path(place)
    if not path.exists():
        return is_hub_name(str(place))
    if path.is_file():
        return path.suffix.lower() == ".parquet"
    saved = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    if saved or (path / "dataset_dict.json").is_file():
        return True
    return bool(_list_tables(path)) and not any(each.suffix.lower() in SOUND_ENDINGS for each in path.rglob("*"))


def unpack_dataset(place: str, out: Path, configs: Sequence[str], splits: Sequence[str]) -> Path:
    """Write the rows of a dataset as recordings; returns their folder. Only one process at a time may call it. `configs`, `splits`: what to
    read; it must be given if the dataset has several. Raises `UserError`.
    """
    name = Path(place).resolve().name if Path(place).exists() else place.rpartition("/")[2]
    target = out.with_name(f"{out.name}.recordings") / name
    _require_own_target(place, target)
    parts, loose = _find_parts(place, configs, splits)
    identity = _identify(parts, loose)
    if (target / ORIGIN).is_file() and strict_json.read_object(target / ORIGIN) == identity:
        return target
    files.remove_unfinished(files.make_folder(target.parent), name)
    with files.new_folder(target) as temporary:
        for relative, path in loose.items():
            files.copy_into(path, temporary / relative)
        if parts:
            files.write_jsonl(temporary / "metadata.jsonl", _write_rows(place, parts, temporary))
        files.write_json(temporary / ORIGIN, identity)
        files.discard(target)  # files of an older version of the dataset
    return target


def _require_own_target(place: str, target: Path) -> None:
    """Raises `UserError` for a folder that would be replaced and that this module did not write, or that holds the dataset itself."""
    if Path(place).exists() and Path(place).resolve().is_relative_to(target.resolve()):
        raise UserError(f"{OPTION} {place} is where its recordings would be written ({target}); choose another --out")
    if target.is_dir() and not (target / ORIGIN).is_file() and any(target.iterdir()):
        raise UserError(f"{target} exists and was not written from a dataset; choose another --out, or rename the folder")
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file, and the recordings of {place} would be written there; choose another --out")


def _find_parts(place: str, configs: Sequence[str], splits: Sequence[str]) -> tuple[list[DatasetPart], dict[str, Path]]:
    """Return the tables to read, and the sound files of a repository that has no tables, by their names in it."""
    found = download_dataset_files(OPTION, place, HUB_FILES, configs)
    if found is None:
        parts = list(_list_local_parts(Path(place), configs))
        wanted = choose_splits(OPTION, place, list(dict.fromkeys(part.split for part in parts)), splits)
        return [part for part in parts if part.split in wanted], {}
    tables = [file for file in found if file.name.lower().endswith(".parquet")]
    sound = [file for file in found if Path(file.name).suffix.lower() in SOUND_ENDINGS]
    if not tables and not sound:
        raise UserError(
            f"{OPTION} {place}: the dataset has neither Parquet files nor recordings; download and unpack it, and give the folder"
        )
    wanted = choose_splits(OPTION, place, list(dict.fromkeys(file.split for file in tables or sound)), splits)
    if tables:
        return [DatasetPart(file.split, file.path, file.path.parent) for file in tables if file.split in wanted], {}
    return [], {file.name: file.path for file in found if file.split in wanted or file.name.endswith(TABLES)}


def _list_local_parts(path: Path, configs: Sequence[str]) -> Iterator[DatasetPart]:
    is_saved = path.is_dir() and ((path / "dataset_dict.json").is_file() or (path / "state.json").is_file())
    if configs and (path.is_file() or is_saved):
        raise UserError(f"--config {configs[0]}: {path} has no configurations; omit --config")
    if path.is_file():
        yield DatasetPart("train", path, path.parent)
    elif (path / "dataset_dict.json").is_file():
        names = strict_json.read_object(path / "dataset_dict.json").get("splits")
        if not isinstance(names, list) or not names or not all(is_plain_name(name) for name in names):
            raise UserError(f"{path / 'dataset_dict.json'}: splits must be a list of names of folders beside it, found {names!r:.60}")
        if missing := [name for name in names if not (path / name / "state.json").is_file()]:
            raise UserError(f"{path}: the folder of the split {missing[0]} or its state.json is missing; copy the dataset again")
        yield from (DatasetPart(name, files.resolve_under(path, name), path) for name in names)
    elif (path / "state.json").is_file():
        yield DatasetPart("train", path, path)
    else:
        names = _list_tables(path)
        folders = list_configuration_folders(names)
        chosen = choose_configurations(OPTION, str(path), folders, configs)
        for name in names:
            first, _, rest = name.partition("/")
            if not folders or first in chosen:
                yield DatasetPart(_find_local_split(rest if folders else name), path / name, path)


def _list_tables(folder: Path) -> list[str]:
    """Return the Parquet files under a folder, by their paths in it; none with a hidden name."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet") if path.is_file())
    return [name for name in names if not any(part.startswith(".") for part in name.split("/"))]


def _find_local_split(name: str) -> str:
    """Return the split of a file: `data/test-00000-of-00002.parquet` → `test`. A file that only has a number belongs to the split that its
    folder is named after, as in `de/test/0000.parquet`, or to the training split."""
    *folders, file = name.split("/")
    split = file.partition("-")[0].partition(".")[0]
    if not split.isdigit():
        return split
    return folders[-1] if folders and folders[-1] not in NO_SPLITS else TRAIN_SPLIT


class DatasetRow(NamedTuple):
    """A row of a table with sound."""

    audio: object
    """{bytes, path} of its sound, if it has some."""
    fields: dict[str, str]
    """Text, speaker and language, where the table has them."""


def _identify(parts: list[DatasetPart], loose: dict[str, Path]) -> dict[str, object]:
    """Return the identity of the dataset, which changes whenever it or the code that writes it does: its version, names, sizes and times of
    the files."""
    tables = [path for part in parts for path in (sorted(part.path.iterdir()) if part.path.is_dir() else [part.path])]
    known = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in [*tables, *loose.values()]]
    return {"form": FORM, "files": [list(each) for each in known], "splits": sorted({part.split for part in parts})}


def _write_rows(place: str, parts: list[DatasetPart], folder: Path) -> Iterator[dict[str, str]]:
    """Write the sound of every row to `folder`; yield the lines of its metadata.jsonl. Rows without sound are counted and reported."""
    counts: Counter[str] = Counter()
    for part in parts:
        for row in _read_rows(part):
            number = counts[part.split] = counts[part.split] + 1
            sound, ending = _read_sound(part, row.audio)
            if sound is None:
                counts[""] += 1
                continue
            name = f"{part.split}-{number:06d}{ending}"
            files.write_in_place(folder / name, sound)
            yield {"file_name": name, "text": "", **row.fields}
    silent, rows = counts.pop("", 0), sum(counts.values())
    if silent == rows:
        raise UserError(f"{OPTION} {place}: none of its {format_count(rows, 'row')} has sound, embedded or in a file beside it")
    if silent:
        print_line(f"note: {place}: {format_count(silent, 'row')} without sound, dropped")


def _read_rows(part: DatasetPart) -> Iterator[DatasetRow]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{part.path} needs pyarrow: pip install 'overtone[text]'") from None
    try:
        if part.path.is_dir():
            yield from _convert(part, read_streams(list_data_files(part.path)))
            return
        with input_files.open_file(part.path) as opened, parquet.ParquetFile(opened) as file:
            yield from _convert(part, file.iter_batches(ROWS_AT_ONCE))
    except (pyarrow.ArrowException, ValueError, ArithmeticError, OSError) as error:
        raise UserError(f"{part.path} is broken ({strict_json.one_line(error):.200})") from None


def _convert(part: DatasetPart, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[DatasetRow]:
    for batch in batches:
        batch.validate(full=True)  # otherwise invalid offsets would be followed beyond the file
        audio = _find_audio_column(part, batch.schema)
        others = {key: column for key, column in _find_text_columns(batch.schema).items() if column is not None}
        names = {column: _read_class_names(batch.schema, column) for column in others.values()}
        for number in range(batch.num_rows):
            row = {key: _format_value(batch.column(column)[number].as_py(), names[column]) for key, column in others.items()}
            yield DatasetRow(batch.column(audio)[number].as_py(), {key: value for key, value in row.items() if value.strip()})


def _format_value(value: str | int | None, names: list[str]) -> str:
    """Return a text, the name of a class, or the number of a speaker."""
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return "" if value is None or (names and value == NO_CLASS) else str(value)


def _read_class_names(schema: pyarrow.Schema, column: str) -> list[str]:
    """Return the names of a ClassLabel column, which `datasets` keeps in the metadata of the table; empty for other columns."""
    try:
        described = strict_json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = described["info"]["features"][column]["names"]
    except (ValueError, KeyError, TypeError):
        return []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _find_audio_column(part: DatasetPart, schema: pyarrow.Schema) -> str:
    from pyarrow import types

    if twice := next((name for name, count in Counter(schema.names).items() if count > 1), None):
        raise UserError(f"{part.path} has several columns named {twice!r}; rename one of them")
    found = [field.name for field in schema if types.is_struct(field.type) and {"bytes", "path"} <= {inner.name for inner in field.type}]
    chosen = [name for name in found if name == "audio"] or found
    if len(chosen) != 1:
        what = f"several columns with sound ({', '.join(chosen)})" if chosen else "no column with sound ({bytes, path})"
        raise UserError(f"{part.path} has {what}; its columns are {', '.join(schema.names):.200}")
    return chosen[0]


def _find_text_columns(schema: pyarrow.Schema) -> dict[str, str | None]:
    from pyarrow import types

    def list_names(*wanted: Callable[[pyarrow.DataType], bool]) -> list[str]:
        kinds = [(field.name, field.type.value_type if types.is_dictionary(field.type) else field.type) for field in schema]
        return [name for name, kind in kinds if any(fits(kind) for fits in wanted)]

    is_text = (types.is_string, types.is_large_string)
    texts, numbers = list_names(*is_text), list_names(*is_text, types.is_integer)
    columns = find_columns(["file_name", *texts]) or find_columns(["file_name", TEXT_COLUMNS[0], *texts])
    named = find_columns(["file_name", TEXT_COLUMNS[0], *numbers])  # speakers and languages may also be numbers
    assert columns is not None and named is not None
    return {"text": columns.text if columns.text in texts else None, "speaker": named.speaker, "language": named.language}


def _read_sound(part: DatasetPart, value: object) -> tuple[bytes | None, str]:
    """Return (bytes, ending) of a row's sound: embedded, or in a file under the dataset's folder; None without either."""
    content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (None, None)
    if content is None and isinstance(path, str) and path:
        try:
            beside = find_file(part.root, path)
        except UserError:
            return None, ""
        content = input_files.read_bytes(beside, LARGEST_SOUND) if beside.is_file() else None
    if not isinstance(content, bytes) or not content:
        return None, ""
    ending = next((ending for magic, ending in MAGIC.items() if content.startswith(magic)), Path(path or "").suffix.lower())
    return content, ending if ending in SOUND_ENDINGS else ".wav"
