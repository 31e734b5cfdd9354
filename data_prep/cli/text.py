"""Turn files of conversations into a chat dataset for fine-tuning.

  overtone text chats.jsonl more/ --out data/chats
  overtone text HuggingFaceH4/no_robots --out data/chats
  overtone train --recipe llm_sft --data.train data/chats/train.jsonl
  overtone text HuggingFaceH4/ultrafeedback_binarized --split train_prefs --rows pairs --out data/pairs
  overtone train --recipe llm_dpo --data.train data/pairs/train.jsonl
  overtone text openai/gsm8k --config main --rows prompts --out data/sums
  overtone train --recipe llm_grpo --options.rewards.functions rewards.py --data.train data/sums/train.jsonl
  overtone text books/ --raw --out data/books

Sources are files, folders, and names of datasets on the hub, of which the training split is read. Reads .jsonl, .json, .csv, .tsv (each
also with .gz), .parquet and folders that `datasets` saved, in the shapes messages, ShareGPT, Alpaca, Dolly, question/answer,
prompt/completion, ChatGPT's export, and preference pairs, of which the chosen answer is read. --rows pairs writes both answers of pairs
(`prompt`, `chosen`, `rejected`), and --rows labels answers that are marked as good or bad (`prompt`, `completion`, `label`). --rows
prompts writes prompts with the keys that rewards read (`prompt`, `answer`), and rejects rows without one of these keys. --raw reads
texts without questions and answers (.txt, .md, and the column `text` of the other formats), for continued pretraining: each row is a piece
of a document, all of it is learned, and the same pieces are kept once. Chats that
WhatsApp exported (.txt, .zip) need --as NAME, the person whose messages are the answers. Rejected rows are listed in rejects.jsonl with
their location and reason; other unused input (files of other kinds, unknown keys) is counted in the summary. The same files in the same
order give byte-identical output.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from overtone.data_prep.chats import (
    chat_file_readers,
    chat_file_search,
    chat_messages,
    chat_split,
    conversation_checks,
    row_counts,
    whatsapp_export,
)
from overtone.data_prep.chats.chat_file_readers import ReaderOptions
from overtone.data_prep.chats.chat_file_search import ChatSource, FoundRow, FoundSources
from overtone.data_prep.chats.chat_messages import ChatRow
from overtone.data_prep.chats.chat_split import ValidationFilter
from overtone.data_prep.chats.column_mapping import ColumnMapping, parse_columns
from overtone.data_prep.chats.conversation_formats import SHAPES, ShapeError, detect_shape, list_unread_keys, normalise_row
from overtone.data_prep.chats.preference_conversion import CONVERTERS, check_sides
from overtone.data_prep.chats.prompt_conversion import (
    ANSWER,
    DEFAULT_REWARD_KEYS,
    PROMPT_ROWS,
    SCHEMA,
    can_be_matched,
    check_prompt,
    convert_prompt,
)
from overtone.data_prep.chats.raw_texts import FEWEST_CHARACTERS, PIECE_CHARACTERS, RAW, RawTexts, check_text, convert_text
from overtone.data_prep.chats.row_counts import MADE_BY, REJECTED, TRAINS, VALIDATES, ChatSummary, RowCounts, UnreadKeys
from overtone.data_prep.chats.whatsapp_export import DEFAULT_PAUSE_HOURS
from overtone.data_prep.manifest import REJECTS, SUMMARY, TRAIN, VAL
from overtone.data_prep.recordings.garbled_text import find_utf8_reading
from overtone.data_prep.recordings.invisible_characters import count_hidden
from overtone.finetune.argument_parsing import check_choice, parse_arguments
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.storage.strict_json import one_line
from overtone.finetune.terminal import print_line

MOST_PAUSE_HOURS = 24 * 365
ROWS = {**CONVERTERS, RAW: convert_text}
"""Kind of rows that are no conversations → the function that converts a row."""
CHANGED = "the input files changed while they were being read; run the same command again"


@dataclass(frozen=True)
class TextOptions:
    """Settings for parsing rows, and the size of the validation split."""

    shape: str | None = None
    """Shape of every row; None: detected from the keys of each row."""
    rows: str | None = None
    """Rows for preference training, a key of `CONVERTERS`, `PROMPT_ROWS`, or `RAW` texts; None: conversations."""
    reward_keys: Sequence[str] = DEFAULT_REWARD_KEYS
    """Keys that rows of prompts must have, and keep."""
    val_share: float = 0.02
    val_rows: int | None = None
    """Maximum number of validation rows; replaces `val_share`."""
    join_turns: bool = False
    """True if messages of the same role in a row are joined; otherwise such rows are rejected."""
    columns: ColumnMapping = field(default_factory=ColumnMapping)
    reader: ReaderOptions = field(default_factory=ReaderOptions)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(
        prog="overtone text", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("sources", nargs="+", help="files or folders of conversations, or hub names of datasets (owner/name)")
    options.add_argument("--out", type=Path, required=True, help=f"output folder for {TRAIN}, {VAL}, {REJECTS}, {SUMMARY}")
    exclusive = options.add_mutually_exclusive_group()
    exclusive.add_argument(
        "--val-share",
        type=float,
        default=TextOptions.val_share,
        help="validation share of the conversations, 0 to 1 (default %(default)s, but at least 2 of 6 rows and 5 of 50; 0: none)",
    )
    exclusive.add_argument(
        "--val-rows", type=int, help="maximum number of validation rows instead; conversations with the same first question stay together"
    )
    kinds = options.add_mutually_exclusive_group()
    kinds.add_argument(
        "--rows",
        choices=[*CONVERTERS, PROMPT_ROWS],
        help="rows for preference training instead of conversations: pairs of answers, or answers with labels, for objective kto; or "
        "prompts for training by rewards",
    )
    kinds.add_argument(
        "--raw", dest="rows", action="store_const", const=RAW, help="rows of plain text, all of which is learned, instead of conversations"
    )
    options.add_argument(
        "--piece-characters",
        type=int,
        metavar="N",
        help=f"with --raw: split longer documents, between paragraphs, lines, sentences or words (default {PIECE_CHARACTERS:,})",
    )
    options.add_argument(
        "--reward-keys",
        metavar="KEY,…",
        help=f"with --rows {PROMPT_ROWS}: keys that the rewards read, which each row must have (default {','.join(DEFAULT_REWARD_KEYS)}; "
        "'' for none)",
    )
    _add_reading_options(options)
    return options


def _add_reading_options(options: argparse.ArgumentParser) -> None:
    """Add the options that say how the sources are read."""
    options.add_argument("--shape", choices=list(SHAPES), help="parse every row in this shape; needed where keys fit several shapes")
    options.add_argument(
        "--columns",
        action="append",
        default=[],
        metavar="NAME=COLUMN,…",
        help="names of columns that differ from those of the formats, as in prompt=frage,completion=antwort; for messages also their keys: "
        "messages=dialog,role=speaker,content=text",
    )
    options.add_argument("--as", dest="person", metavar="NAME", help="whose messages are the answers, in chats that WhatsApp exported")
    options.add_argument(
        "--pause-hours",
        type=float,
        metavar="HOURS",
        help=f"a longer pause in a chat that WhatsApp exported begins another conversation (default {DEFAULT_PAUSE_HOURS:g})",
    )
    options.add_argument(
        "--join-turns",
        action="store_true",
        help="join two messages in a row of the user, or of the assistant, instead of rejecting the row",
    )
    options.add_argument(
        "--config", action="append", default=[], metavar="NAME", help="configuration of a hub dataset that has several; repeat it for more"
    )
    options.add_argument(
        "--split",
        action="append",
        default=[],
        metavar="NAME",
        help="split of a hub dataset to read, if it has several; repeat it for more",
    )


@dataclass(frozen=True)
class ChatsOptions:
    """Options of the verb `text`."""

    sources: Sequence[str]
    out: Path
    val_share: float = TextOptions.val_share
    val_rows: int | None = None
    rows: str | None = None
    piece_characters: int | None = None
    reward_keys: str | None = None
    shape: str | None = None
    columns: ColumnMapping = field(default_factory=ColumnMapping)
    person: str | None = None
    pause_hours: float | None = None
    join_turns: bool = False
    config: Sequence[str] = ()
    split: Sequence[str] = ()


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run the verb. Returns 0 if there are rows to train on."""
    given = vars(parse_arguments(parser(), argv))
    options = ChatsOptions(**given | {"columns": parse_columns(given["columns"])})
    summary = prepare_chats(options)
    data = ["--data.train", options.out / TRAIN, *(["--data.val", options.out / VAL] if summary.val else [])]
    recipe = {None: "llm_sft", RAW: "llm_sft", PROMPT_ROWS: "llm_grpo"}.get(options.rows, "llm_dpo")
    base = {RAW: "Qwen/Qwen3-1.7B-Base", PROMPT_ROWS: "Qwen/Qwen2.5-1.5B-Instruct"}.get(options.rows or "", "Qwen/Qwen3-1.7B")
    own = ["--options.objective", "kto"] if options.rows == "labels" else []
    if options.rows == PROMPT_ROWS:
        exact = {} if summary.rows_with_answers_of_several_lines else {ANSWER: "exact_match"}
        keys, rewards = _list_reward_keys(options), {**exact, SCHEMA: "json_schema"}
        reward = next((name for key, name in rewards.items() if key in keys), None)
        own = [f"--options.rewards.{reward}.weight", "1"] if reward else ["--options.rewards.functions", "rewards.py"]
    print_line(f"next: {overtone_command('train', '--recipe', recipe, *own, '--model.source', base, *data)}")
    return 0


def prepare_chats(options: ChatsOptions) -> ChatSummary:
    """Write the dataset, and print what is in it; returns the summary. Raises `UserError` if no row is left to train on."""
    _check_options(options)
    places = [path for source in options.sources for path in chat_file_search.download_chats(source, options.config, options.split)]
    gathered = chat_file_search.find_sources(places, options.rows == RAW)
    _check_target(options.out, [*places, *(source.path for source in gathered.sources)])
    columns = options.columns.row
    texts = RawTexts(columns.get("text", "text"), options.piece_characters or PIECE_CHARACTERS) if options.rows == RAW else None
    reward_keys = _list_reward_keys(options)
    read = frozenset(columns.values()).union({texts.column} if texts else (), reward_keys if options.rows == PROMPT_ROWS else ())
    reader = replace(_check_reader_options(options, gathered.sources), columns=read, texts=texts)
    wanted = TextOptions(
        shape=options.shape,
        rows=options.rows,
        reward_keys=reward_keys,
        val_share=options.val_share,
        val_rows=options.val_rows,
        join_turns=options.join_turns,
        columns=options.columns,
        reader=reader,
    )
    summary = write_dataset(gathered, options.out, wanted)
    print_line(row_counts.format_summary(summary))
    return summary


def _check_options(options: ChatsOptions) -> None:
    check_choice("--shape", options.shape, SHAPES)
    check_choice("--rows", options.rows, (*CONVERTERS, PROMPT_ROWS, RAW))
    if options.reward_keys is not None and options.rows != PROMPT_ROWS:
        raise UserError(f"--reward-keys is for --rows {PROMPT_ROWS}; give that too, or remove it")
    kind = "--raw" if options.rows == RAW else f"--rows {options.rows}"
    if options.rows is not None and options.shape is not None:
        raise UserError(f"--shape {options.shape} is for conversations; remove it, or {kind}")
    if options.rows == RAW and options.join_turns:
        raise UserError("--join-turns is for conversations; remove it, or --raw")
    if options.piece_characters is not None and options.rows != RAW:
        raise UserError("--piece-characters is for --raw; conversations are never split")
    if options.piece_characters is not None and options.piece_characters < FEWEST_CHARACTERS:
        raise UserError(f"--piece-characters {options.piece_characters}: expected {FEWEST_CHARACTERS} or more")
    if not 0 <= options.val_share < 1:
        raise UserError(f"--val-share {options.val_share}: expected a share from 0 up to but not including 1")
    if options.val_rows is not None and options.val_rows < 0:
        raise UserError(f"--val-rows {options.val_rows}: expected a number of rows, 0 or more")


def _list_reward_keys(options: ChatsOptions) -> tuple[str, ...]:
    """Return the keys that rows of prompts must have. Raises `UserError` for a key that holds the prompt."""
    if options.reward_keys is None:
        return DEFAULT_REWARD_KEYS
    keys = tuple(dict.fromkeys(key.strip() for key in options.reward_keys.split(",") if key.strip()))
    if wrong := [key for key in keys if key in ("prompt", "messages", "tools", "source")]:
        raise UserError(f"--reward-keys {wrong[0]}: rows have this key anyway; name what the rewards read, such as answer")
    return keys


def _check_reader_options(options: ChatsOptions, sources: list[ChatSource]) -> ReaderOptions:
    """Return the options for exported chats. Raises `UserError` if they do not fit the sources."""
    exported = [source.path for source in sources if source.kind == chat_file_search.WHATSAPP]
    if not exported:
        if flag := next((flag for flag, given in (("--as", options.person), ("--pause-hours", options.pause_hours)) if given), None):
            raise UserError(f"{flag} is for chats that WhatsApp exported, and the sources have none; remove it")
        return ReaderOptions()
    pause = DEFAULT_PAUSE_HOURS if options.pause_hours is None else options.pause_hours
    if not 0 < pause < MOST_PAUSE_HOURS:
        raise UserError(f"--pause-hours {pause:g}: expected a number of hours above 0 and below {MOST_PAUSE_HOURS:,}")
    return ReaderOptions(person=whatsapp_export.require_person(exported, options.person), pause_hours=pause)


def _check_target(out: Path, sources: list[Path]) -> None:
    """Refuse an output folder that this verb did not create, that contains a source, or that is inside a source.

    Writing inside a source would make the next run read the output of this one.
    """
    target = Path(os.path.realpath(out))
    for source in sources:
        read = Path(os.path.realpath(source))
        if read.is_relative_to(target):
            raise UserError(f"--out {out} would overwrite the source {source}; choose another folder")
        if target.is_relative_to(read):
            raise UserError(
                f"--out {out} is inside the source {source}, so the next run would read this output; choose a folder outside it"
            )
    if os.path.lexists(target) and not _is_own_output(target):
        raise UserError(f"--out {out} exists and was not created by {MADE_BY}; choose another folder or remove it")


def _is_own_output(out: Path) -> bool:
    """Return whether the folder was created by this verb, or is empty."""
    try:
        return not any(out.iterdir()) or bool(strict_json.loads(input_files.read_bytes(out / SUMMARY))["made_by"] == MADE_BY)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_dataset(gathered: FoundSources, out: Path, wanted: TextOptions) -> ChatSummary:
    """Write the dataset to a temporary folder, then rename it to `out`. Returns the summary.

    Raises `UserError` if no row is left to train on.
    """
    target, tally = Path(os.path.realpath(out)), RowCounts()
    temporary = _make_temporary_folder(target)
    try:
        _write_files(temporary, gathered.sources, wanted, tally)
        if least := _count_least_validation(wanted, tally):
            tally = RowCounts()
            _write_files(temporary, gathered.sources, replace(wanted, val_rows=least), tally)
        summary = row_counts.make_summary(tally, gathered.skipped, wanted.val_share, wanted.val_rows, least, wanted.rows)
        _check_trainable(summary)
        files.write_json(temporary / SUMMARY, summary.as_json())
        if target.exists():
            files.discard(target)
        files.commit_folder(temporary, target)
    except BaseException:
        files.discard(temporary)
        raise
    return summary


def _count_least_validation(wanted: TextOptions, tally: RowCounts) -> int:
    """Return the validation rows to choose instead, because the share of few conversations gave fewer; 0 if the split stays."""
    if wanted.val_rows is not None or not wanted.val_share:
        return 0
    least = chat_split.count_least_validation(len(tally.kinds) - tally.kinds.count(REJECTED))
    return least if tally.kinds.count(VALIDATES) < least else 0


def _make_temporary_folder(target: Path) -> Path:
    """Create a temporary folder next to the target; leftovers of killed runs are removed first."""
    try:
        files.make_folder(target.parent)
        files.remove_unfinished(target.parent, target.name)
        return files.fresh_folder(target.parent, target.name)
    except OSError as error:
        raise UserError(f"--out {target} cannot be created ({one_line(error)}); choose another folder") from None


def _write_files(folder: Path, sources: list[ChatSource], wanted: TextOptions, tally: RowCounts) -> None:
    files.write_jsonl(folder / TRAIN, _yield_training_rows(sources, wanted, _choose_validation(sources, wanted), tally))
    if VALIDATES in tally.kinds:
        files.write_jsonl(folder / VAL, _yield_validation_rows(sources, wanted, tally))
    files.write_jsonl(folder / REJECTS, tally.rejects)


def _check_trainable(summary: ChatSummary) -> None:
    if summary.train:
        return
    if summary.val:
        raise UserError(f"no training rows left: all {summary.val} rows went to validation; use a smaller --val-share or --val-rows")
    raise UserError(f"no training rows among {summary.read} rows: {row_counts.explain_no_rows(summary)}")


def _choose_validation(sources: list[ChatSource], wanted: TextOptions) -> ValidationFilter:
    """Return a filter that selects the conversations for validation. `val_rows` needs an extra pass over the sources to know the split
    position of every row."""
    if wanted.val_rows is None:
        return lambda position: position < wanted.val_share
    tally = RowCounts()  # counts of this extra pass, discarded
    kept = (row for source in sources for _, row in _check_rows(source, wanted, tally) if row)
    return chat_split.make_count_filter(map(chat_split.compute_split_position, kept), wanted.val_rows)


def _yield_training_rows(
    sources: list[ChatSource], wanted: TextOptions, validates: ValidationFilter, tally: RowCounts
) -> Iterator[ChatRow]:
    """Yield the training rows; record the outcome of every row in `tally`, so that memory holds digests instead of texts."""
    for source in sources:
        for place, row in _check_rows(source, wanted, tally):
            kind = REJECTED if row is None else VALIDATES if validates(chat_split.compute_split_position(row)) else TRAINS
            tally.kinds.append(kind)
            if row is not None and kind == TRAINS:
                yield {**row, "source": place}


def _yield_validation_rows(sources: list[ChatSource], wanted: TextOptions, tally: RowCounts) -> Iterator[ChatRow]:
    """Yield the validation rows from a second pass, which needs no memory. Raises `UserError` if the rows differ from the first pass."""
    again = (found for source in sources for found in chat_file_readers.read_rows(source, wanted.reader))
    for kind, found in zip_longest(tally.kinds, again):
        if kind is None or found is None:
            raise UserError(CHANGED)
        if kind == VALIDATES:
            yield {**_reread_row(found, wanted, tally), "source": found.place}


def _reread_row(found: FoundRow, wanted: TextOptions, tally: RowCounts) -> ChatRow:
    try:
        row, *_ = _parse_conversation(found, wanted)
    except UserError:
        raise UserError(CHANGED) from None
    if tally.find_earlier(row, found.place) != found.place:
        raise UserError(CHANGED)
    return row


def _check_rows(source: ChatSource, wanted: TextOptions, tally: RowCounts) -> Iterator[tuple[str, ChatRow | None]]:
    """Yield (location, row or None if rejected). Raises `UserError` for a source in which no row has a known shape."""
    tally.by_source[source.name], strange, unknown = 0, 0, ""
    for found in chat_file_readers.read_rows(source, wanted.reader):
        tally.by_source[source.name] += 1
        tally.left_out.update(found.left_out)
        row = None
        try:
            row = _accept_row(found, wanted, tally)
        except UserError as error:
            tally.count_rejected(found.place, str(error))
            unknown = str(error) if isinstance(error, ShapeError) else unknown
            strange += isinstance(error, ShapeError) or found.row is None
        yield found.place, row
    if unknown and strange == tally.by_source[source.name]:
        raise UserError(
            f"{source.path}: its rows have {one_line(unknown)}. To skip this file, list the files to read instead of the folder"
        )


def _accept_row(found: FoundRow, wanted: TextOptions, tally: RowCounts) -> ChatRow:
    """Return the row as it is written. Raises `UserError` with the reason for a rejection."""
    row, kind, read, tidied, joined = _parse_conversation(found, wanted)
    if first := tally.find_earlier(row, found.place):
        raise UserError(f"the same as {first}")
    parts = [row.get(key, ()) for key in ("messages", "prompt", "text", *conversation_checks.ANSWERS)]
    turns = [turn for part in parts if not isinstance(part, str) for turn in part]
    unlearned = sum(turn.get("weight") == 0 for turn in turns)
    given = found.row or {}
    of_row = [*list_unread_keys(wanted.columns.translate(given), read), *wanted.columns.list_replaced(given)]
    unread = UnreadKeys(of_row, chat_messages.list_unread_keys(turns))
    tally.count_kept(kind, unread, tidied, joined, unlearned)
    texts = [turn["content"] for turn in turns if isinstance(turn.get("content"), str)] + [part for part in parts if isinstance(part, str)]
    tally.invisible.update({kind for text in texts for kind in count_hidden(text)})
    tally.unmatchable += wanted.rows == PROMPT_ROWS and ANSWER in row and not can_be_matched(row[ANSWER])
    tally.misread += any("\ufffd" in text or find_utf8_reading(text) for text in texts)
    return row


class ParsedRow(NamedTuple):
    """A normalised and checked row."""

    row: ChatRow
    shape: str
    """Name of its original shape."""
    read: frozenset[str]
    """Keys that were read."""
    tidied: bool
    """True if leading line breaks were removed."""
    joined: int
    """Messages that were joined to the one before."""


def _parse_conversation(found: FoundRow, wanted: TextOptions) -> ParsedRow:
    """Return the row as it is written. Raises `UserError` with the reason for a rejection."""
    if found.row is None:
        raise UserError(found.problem)
    given = wanted.columns.translate(found.row)
    if wanted.rows is None:
        kind = wanted.shape or detect_shape(given)
        row, read = normalise_row(given, kind), SHAPES[kind].keys | SHAPES[kind].also
    else:
        row, kind, read = (
            convert_prompt(given, wanted.reward_keys, wanted.columns.row) if wanted.rows == PROMPT_ROWS else ROWS[wanted.rows](given)
        )
    joined = conversation_checks.join_repeated_turns(row) if wanted.join_turns else 0
    tidied = conversation_checks.strip_answer_newlines(row)
    checks = {None: conversation_checks.check_conversation, RAW: check_text, PROMPT_ROWS: check_prompt}
    checks.get(wanted.rows, check_sides)(row)
    return ParsedRow(row, kind, read, tidied, joined)
