"""Keys of codes, and how clips are batched. test_codes.py tests the encoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.audio_codecs.qwen3_tts_codec import QwenCodec
from overtone.data_prep.dataset import clip_encoding
from overtone.data_prep.dataset.clip_encoding import (
    ClipToEncode,
    EncodingSetup,
    encode_clips,
    list_time_shifts,
    locate_codes,
    make_batches,
    make_key,
    read_codes,
)
from overtone.data_prep.parallel.process_pool import Failure, StopSignal
from overtone.data_prep.parallel.worker_options import WorkerOptions
from overtone.finetune.errors import UserError


def clip(name: str, seconds: float) -> ClipToEncode:
    return ClipToEncode(Path(name), name, round(seconds * MASTER_RATE))


def test_batches_have_similar_lengths_and_at_most_the_requested_seconds() -> None:
    clips = [clip(f"{index:03}", seconds) for index, seconds in enumerate([3, 9, 3.1, 25, 3.2, 9.1, 1])]
    grouped = [[one.samples / MASTER_RATE for one in batch] for batch in make_batches(clips, 20, MASTER_RATE)]
    assert grouped == [[1, 3, 3.1, 3.2], [9, 9.1], [25]]
    assert make_batches([], 20, MASTER_RATE) == []


@given(st.lists(st.floats(0.5, 30), max_size=60), st.floats(0.1, 100))
def test_every_clip_is_in_one_batch_and_no_batch_is_too_long(lengths: list[float], seconds: float) -> None:
    clips = [clip(f"{index:03}", length) for index, length in enumerate(lengths)]
    grouped = make_batches(clips, seconds, MASTER_RATE)
    assert sorted(one.key for batch in grouped for one in batch) == [one.key for one in clips]
    assert all(len(batch) == 1 or len(batch) * max(one.samples for one in batch) <= seconds * MASTER_RATE for batch in grouped)


def test_a_batch_that_crashes_its_workers_is_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One clip is at fault, and the others of its batch get their codes."""

    def distribute(groups: list[list[ClipToEncode]], *_: object) -> Iterator[tuple[int, dict[str, str] | Failure]]:
        for index, group in enumerate(groups):
            yield index, Failure("killed by signal 9") if any(one.key == "bad" for one in group) else {}

    monkeypatch.setattr(clip_encoding, "distribute_items", distribute)
    clips = [clip(name, 2) for name in ("a", "bad", "c")] + [clip("d", 30)]
    with StopSignal() as stop:
        failed = encode_clips(clips, EncodingSetup(tmp_path, QwenCodec(tmp_path), 20, WorkerOptions(2)), stop)
    assert failed == {"bad": "encoding it failed again and again: killed by signal 9"}


def test_a_key_depends_on_the_clip_and_the_tokenizer() -> None:
    given = [("clip", "codec", 0), ("clip", "other", 0), ("other", "codec", 0), ("clip", "codec", 960), ("clip", "codec", 480)]
    assert len({make_key(*each) for each in given}) == len(given) and make_key("clip", "codec") == make_key("clip", "codec", 0)
    assert locate_codes(Path("codes"), "abcd") == Path("codes/ab/abcd.npy")


def test_time_shifts_divide_a_frame_into_equal_parts() -> None:
    assert list_time_shifts(0, 1920) == []
    assert list_time_shifts(3, 1920) == [480, 960, 1440]
    assert list_time_shifts(2, 2048) == [683, 1365]


def test_batches_have_little_padding() -> None:
    """Clips as the voice verb cuts them: from 1 to 20 s, most of them about six."""
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(6), 0.5, 600), 1, 20)
    grouped = make_batches([clip(f"{index:03}", length) for index, length in enumerate(lengths)], 60, MASTER_RATE)
    padded = sum(len(batch) * max(one.samples for one in batch) for batch in grouped)
    assert sum(lengths) * MASTER_RATE / padded > 0.95
    assert np.median([len(batch) for batch in grouped]) >= 6


@pytest.mark.parametrize(
    "content", [b"", b"no array", b"\x80\x04N.", b"PK\x05\x06" + bytes(18), np.zeros(3), np.zeros((3, 2)), np.zeros((0, 2, 2), np.uint16)]
)
def test_a_file_of_the_store_without_codes_is_named(tmp_path: Path, content: bytes | np.ndarray) -> None:
    path = locate_codes(tmp_path, "a" * 64)
    path.parent.mkdir()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(UserError, match=rf"{path} does not contain the codes of a clip \(.+\); delete it, and the same command"):
        read_codes(tmp_path, "a" * 64)
