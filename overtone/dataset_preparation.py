"""Datasets from Python: recordings of voices, their audio codes, and chats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class VoiceDataset:
    """Clips of recordings with their texts. `overtone.add_codes` makes it data to train on."""

    folder: Path
    train: Path
    """The rows to train on: `train.jsonl`."""
    val: Path | None
    """The rows to validate on: `val.jsonl`; None if there are none."""
    rejects: Path
    """Rejected input, with reasons: `rejects.jsonl`."""
    clips: int
    """Clips that were kept."""
    seconds: float
    """Their duration."""
    rejected: int
    """Clips that were rejected."""
    speakers: dict[str, float]
    """Kept seconds of each speaker."""
    lost: tuple[str, ...]
    """Recordings that could not be read, since they crashed the process that read them."""
    summary: dict[str, Any] = field(repr=False)
    """The content of `summary.json`."""


@dataclass(frozen=True)
class EncodedDataset:
    """Clips with audio codes, as a recipe trains on them."""

    folder: Path
    recipe: str
    """The recipe that trains on these codes."""
    train: Path
    """The rows to train on, with their time-shifted copies, if there are some."""
    val: Path | None
    """The rows to validate on; None if there are none."""
    clips: int
    """Clips that have codes."""
    seconds: float
    """Their duration."""
    rejected: int
    """Clips that could not be encoded; `rejects.jsonl` has the reasons."""
    base: str | None
    """The base model, if the codec is that of a base in a folder. None for names on the hub: released models share a codec, and the recipe
    has a default."""

    @property
    def settings(self) -> dict[str, object]:
        """Settings of `overtone.train` for these data: `overtone.train(codes.recipe, {**codes.settings, "run.dir": "runs/me"})`."""
        return {
            "data.train": self.train,
            **({} if self.val is None else {"data.val": self.val}),
            **({} if self.base is None else {"model.source": self.base}),
        }


@dataclass(frozen=True)
class ChatDataset:
    """Conversations as rows to train on."""

    folder: Path
    train: Path
    """The rows to train on: `train.jsonl`."""
    val: Path | None
    """The rows to validate on: `val.jsonl`; None if there are none."""
    rejects: Path
    """Rejected input, with reasons: `rejects.jsonl`."""
    train_rows: int
    val_rows: int
    rejected_rows: int
    summary: dict[str, Any] = field(repr=False)
    """The content of `summary.json`."""

    @property
    def settings(self) -> dict[str, object]:
        """Settings of `overtone.train` for these data: `overtone.train("llm_sft", {**chats.settings, "run.dir": "runs/mine"})`."""
        return {"data.train": self.train, **({} if self.val is None else {"data.val": self.val})}


def prepare_voice(
    recordings: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    whisper: str | os.PathLike[str] | None = None,
    transcripts: bool = False,
    speaker: str | None = None,
    speaker_from: Literal["folder", "transcript"] | None = None,
    diarize: bool = False,
    speakers: int | str | None = None,
    language: str | None = None,
    speaker_check: str | os.PathLike[str] | None = None,
    align: str | os.PathLike[str] | None = None,
    check_with: str | os.PathLike[str] | None = None,
    beams: int | None = None,
    channels: str = "auto",
    preset: Literal["clean", "default", "keep-all"] = "default",
    val_share: float = 0.05,
    target: float = 6.0,
    shortest: float = 1.0,
    longest: float = 20.0,
    allow_synthetic: bool = False,
    device: Literal["cpu", "cuda"] | None = None,
    workers: int | None = None,
) -> VoiceDataset:
    """Turn recordings of speech into clips with texts. Progress is printed.

    The same call again reuses completed work. An interrupt finishes the recordings in progress, and is then raised. The command
    `overtone voice` describes each option, and also reads parts of datasets, shows what the rules would remove, and works on a Ray cluster.

    Args:
        recordings: a folder of recordings, with its sub-folders; one recording; the URL of either; or a dataset with sound.
        out: the folder to write.
        whisper: the Whisper model that writes the texts: `tiny` to `large-v3`, a `.pt` file, or a hub name.
        transcripts: use the transcripts next to the recordings instead.
        speaker: the speaker of all recordings; by default the name of the folder or file.
        speaker_from: take speakers from the names of sub-folders, or from the transcripts.
        diarize: name the speaker of each clip by its voice.
        speakers: with `diarize`, the number of people, or the fewest and the most: `"2-4"`.
        language: such as `en`; by default detected.
        speaker_check: the speaker encoder that rejects clips of other voices; `"none"`: no check.
        align: the model that rejects clips by forced alignment; `"none"`: no check.
        check_with: with `transcripts`, the Whisper model that rejects clips in which it transcribes other words.
        beams: texts that Whisper follows at the same time; by default 5 with faster-whisper, 1 with openai-whisper.
        channels: `auto`, `left`, `right`, `mix`, `split`, or the number of a channel.
        preset: strictness of the quality rules.
        val_share: validation share of each speaker's speech, 0 to 1.
        target: preferred duration of clips in seconds.
        shortest: minimum duration of clips in seconds.
        longest: maximum duration of clips in seconds.
        allow_synthetic: use recordings whose tags say that they are synthetic speech.
        device: of the models; by default a GPU if there is one.
        workers: worker processes; by default one per GPU, or per core; 0: this process, without crash protection.

    Returns:
        The dataset.

    Raises:
        UserError: for wrong arguments, and if no clip was kept.
        KeyboardInterrupt: after an interrupt.
    """
    from overtone.data_prep.cli import voice
    from overtone.data_prep.manifest import REJECTS, TRAIN, VAL
    from overtone.data_prep.parallel.worker_options import WorkerFlags
    from overtone.finetune.storage import remote

    options = voice.VoiceOptions(
        recordings=remote.parse_place(os.fspath(recordings)),
        out=Path(out),
        whisper=name_model(whisper),
        transcripts=transcripts,
        speaker=speaker,
        speaker_from=speaker_from,
        diarize=diarize,
        speakers=None if speakers is None else str(speakers),
        speaker_check=name_model(speaker_check),
        align=name_model(align),
        check_with=name_model(check_with),
        beams=beams,
        language=language,
        channels=channels,
        allow_synthetic=allow_synthetic,
        preset=preset,
        val_share=val_share,
        target=target,
        shortest=shortest,
        longest=longest,
        flags=WorkerFlags(device=device, workers=workers),
    )
    with raise_stops(recordings, out):
        prepared = voice.prepare_voice(options)
    assert prepared is not None  # no dry run
    summary = prepared.summary
    return VoiceDataset(
        folder=options.out,
        train=options.out / TRAIN,
        val=options.out / VAL if summary.val else None,
        rejects=options.out / REJECTS,
        clips=summary.clips,
        seconds=summary.kept_seconds,
        rejected=summary.rejected,
        speakers=dict(summary.speakers),
        lost=prepared.lost,
        summary=summary.model_dump(),
    )


def add_codes(
    dataset: VoiceDataset | str | os.PathLike[str],
    model: str | os.PathLike[str],
    *,
    speaker: str | None = None,
    time_shifts: int = 0,
    batch_seconds: float = 60.0,
    device: Literal["cpu", "cuda"] | None = None,
    workers: int | None = None,
) -> EncodedDataset:
    """Encode the clips of a dataset, and add the codes to its rows. Progress is printed.

    Codes are kept, so the same call again encodes only what is new. An interrupt is raised after the batches in progress. The command
    `overtone codes` also works on a Ray cluster.

    Args:
        dataset: a dataset of `prepare_voice`, its folder, or a JSONL file for the official Qwen3-TTS script.
        model: a speech model that contains its codec, or a codec: `Qwen/Qwen3-TTS-12Hz-1.7B-Base`, `sesame/csm-1b`,
            `hubertsiuzdak/snac_24khz`, a folder, or `codec-demo`.
        speaker: the speaker of rows that name none.
        time_shifts: copies of each training clip to encode, shifted by parts of a frame, for few minutes of speech.
        batch_seconds: seconds of audio to encode at a time.
        device: of the codec; by default a GPU if there is one.
        workers: worker processes; by default one per GPU, or per core; 0: this process.

    Returns:
        The data to train on.

    Raises:
        UserError: for wrong arguments, an invalid row, or if no clip could be encoded.
        KeyboardInterrupt: after an interrupt.
    """
    from overtone.data_prep import manifest
    from overtone.data_prep.audio_codecs.selection import find_base_model
    from overtone.data_prep.cli import codes
    from overtone.data_prep.parallel.worker_options import WorkerFlags

    place = dataset.folder if isinstance(dataset, VoiceDataset) else Path(dataset)
    named = os.fspath(model)
    with raise_stops(place):
        added = codes.add_codes(
            codes.CodesOptions(place, named, speaker, batch_seconds, time_shifts, WorkerFlags(device=device, workers=workers))
        )
    rows = manifest.locate_training_rows(place)
    return EncodedDataset(
        folder=added.folder,
        recipe=added.codec.recipe,
        train=rows.train,
        val=rows.val,
        clips=added.clips,
        seconds=added.seconds,
        rejected=added.rejected,
        base=find_base_model(named),
    )


def prepare_chats(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    val_share: float = 0.02,
    val_rows: int | None = None,
    rows: str | None = None,
    piece_characters: int | None = None,
    shape: str | None = None,
    columns: Mapping[str, str] | None = None,
    person: str | None = None,
    pause_hours: float | None = None,
    join_turns: bool = False,
) -> ChatDataset:
    """Turn conversations into rows to train on. The command `overtone text` describes the formats, and reads parts of datasets.

    Args:
        sources: files or folders of conversations, or hub names of datasets; one or several.
        out: the folder to write.
        val_share: validation share of the conversations, 0 to 1.
        val_rows: the maximum number of validation rows instead.
        rows: `pairs` or `labels`, for rows for preference training instead of conversations; `raw` for texts, all of which is learned.
        piece_characters: with `raw`, longer documents are split; by default at 4,000 characters.
        shape: the shape of every row; by default detected.
        columns: names of the formats, and the names that the data have instead: `{"prompt": "frage", "completion": "antwort"}`.
        person: whose messages are the answers, in chats that WhatsApp exported.
        pause_hours: a longer pause in such a chat begins another conversation.
        join_turns: join two messages in a row of the same person instead of rejecting the row.

    Returns:
        The dataset.

    Raises:
        UserError: for wrong arguments, files that cannot be read, and if no row is left to train on.
    """
    from overtone.data_prep.chats.column_mapping import map_columns
    from overtone.data_prep.cli import text
    from overtone.data_prep.manifest import REJECTS, TRAIN, VAL

    several = (sources,) if isinstance(sources, str | os.PathLike) else sources
    options = text.ChatsOptions(
        sources=[os.fspath(source) for source in several],
        out=Path(out),
        val_share=val_share,
        val_rows=val_rows,
        rows=rows,
        piece_characters=piece_characters,
        shape=shape,
        columns=map_columns((columns or {}).items()),
        person=person,
        pause_hours=pause_hours,
        join_turns=join_turns,
    )
    with raise_stops(out, *several):
        summary = text.prepare_chats(options)
    return ChatDataset(
        folder=options.out,
        train=options.out / TRAIN,
        val=options.out / VAL if summary.val else None,
        rejects=options.out / REJECTS,
        train_rows=summary.train,
        val_rows=summary.val,
        rejected_rows=summary.rejected,
        summary=summary.as_json(),
    )


def write_report(
    dataset: VoiceDataset | EncodedDataset | ChatDataset | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
) -> Path:
    """Write an HTML report about a dataset: durations or lengths, what was rejected and why, clips to listen to.

    Args:
        dataset: a dataset, or its folder.
        out: the file to write; by default `report.html` in the dataset.
        tokenizer: for chats, the model whose tokens are counted.

    Returns:
        The file, which any browser opens.

    Raises:
        UserError: for a folder that is no dataset, and for a file that is no report.
    """
    from overtone.data_prep.cli import report
    from overtone.finetune.storage.folder_handles import name_paths

    folder = Path(dataset) if isinstance(dataset, str | os.PathLike) else dataset.folder
    name_paths(map(str, (folder, out or folder)))
    return report.write_report(folder, None if out is None else Path(out), name_model(tokenizer))


def name_model(model: str | os.PathLike[str] | None) -> str | None:
    """A model by its name or path, as the options of the command line have it."""
    return None if model is None else os.fspath(model)


@contextmanager
def raise_stops(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """Raise `KeyboardInterrupt` after a stop, once what is in progress is done. `paths`: named by the user, so that they may be links."""
    from overtone.data_prep.parallel.process_pool import StoppedError, report_stopped
    from overtone.finetune.storage.folder_handles import name_paths

    name_paths(str(os.fspath(path)) for path in paths)
    try:
        yield
    except StoppedError as error:
        report_stopped(str(error))
        raise KeyboardInterrupt from None
