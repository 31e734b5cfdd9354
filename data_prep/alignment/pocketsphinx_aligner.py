"""Forced alignment of English with CMU Sphinx, whose package `pocketsphinx` contains an acoustic model and a dictionary."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from overtone.data_prep.alignment.interface import UNALIGNED_SCORE, AlignedUnit, TextAlignment, find_starts
from overtone.data_prep.audio.bandwidth import measure_bandwidth
from overtone.data_prep.audio.waveform import SPEECH_RATE, Samples
from overtone.data_prep.number_words import spell_numbers
from overtone.finetune.errors import UserError

if TYPE_CHECKING:
    from pocketsphinx import Decoder, Hypothesis, Segment

NAME = "pocketsphinx"
LEAST_SCORE = 0.6
"""Nats per frame above a free sequence of phones, whose context-independent models fit worse than the words of the right text. Measured on
60 English telephone prompts: 95 % of the right texts have more, and none of 60 texts with two more words or a wrong second half (at most
0.54). A limit of 1.0 loses 14 % of the right texts of the other prompts. A limit of 0.25, as of a check that nobody requested, would change
nothing: of 50 other prompts, both keep 48 right texts, and accept the text of one other prompt and two with a wrong second half."""
NARROW_HZ, NARROW_LEAST_SCORE = 5000, 0.1
"""Bandwidth below which a clip has the lower limit: the acoustic model is one of speech at 16 kHz, and the scores of the same prompts at
8 kHz are lower by 0.9 in the median. Of 45 right texts, the lower limit rejects 7 (the other limit 12), and of 45 texts of other prompts it
accepts 2 (the other limit 1)."""
FRAMES_PER_SECOND = 100
BEAM, WORD_BEAM = 1e-48, 1e-34
LEAST_KNOWN = 0.5
"""Share of the words that the dictionary must contain for a score."""
PHONE_MODEL, LANGUAGE_WEIGHT = "en-us/en-us-phone.lm.bin", 2.0
SCORE_UNIT = 1024
"""pocketsphinx stores logarithms of scores divided by 2^10 (SENSCR_SHIFT)."""
PHONES = {
    "a": "AE", "b": "B", "c": "K", "d": "D", "e": "EH", "f": "F", "g": "G", "h": "HH", "i": "IH", "j": "JH",
    "k": "K", "l": "L", "m": "M", "n": "N", "o": "AA", "p": "P", "q": "K", "r": "R", "s": "S",
    "t": "T", "u": "AH", "v": "V", "w": "W", "x": "K", "y": "Y", "z": "Z",
}  # fmt: skip
"""Letter → phone, for words outside the dictionary: rough, but their neighbours are aligned with the right stretch."""
SKIP_PROBABILITY = 0.01
"""Probability of skipping a passage of the text, or of stopping."""
SPOKEN = re.compile(r"[a-z]+(?:'[a-z]+)*")
VARIANT = re.compile(r"\(\d+\)$")
FORM = 4
"""Version of the results: increase it when the code gives other scores or times."""


@dataclass(frozen=True)
class PocketsphinxAligner:
    """Implements `Aligner` of `data_prep/alignment/interface.py`."""

    digest: str
    weight_bytes: ClassVar[int] = 40 << 20
    """Size of the English models in the package."""

    def load(self, device: str) -> LoadedPocketsphinxAligner:  # noqa: ARG002 - it runs on the CPU
        return LoadedPocketsphinxAligner(_make_decoder())


class LoadedPocketsphinxAligner:
    """Implements `LoadedAligner` of `data_prep/alignment/interface.py`. Owns a decoder, which is not thread-safe."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._guessed: set[str] = set()
        self._free: tuple[bytes, float | None] = (b"", None)
        """The last samples of `_score_free_phones`, and their score."""

    def align(self, samples: Samples, words: Sequence[str]) -> TextAlignment:
        spoken, unknown = self._find_pronunciations(words)
        if not spoken or unknown > (1 - LEAST_KNOWN) * len(words):
            return TextAlignment(score=None, unknown=unknown)
        free = self._score_free_phones(samples)
        self._decoder.set_align_text(" ".join(word for _, word in spoken))
        aligned = self._decode(samples)
        if free is None or aligned is None or [remove_variant(one.word) for one in self._list_words()] != [word for _, word in spoken]:
            return TextAlignment(score=UNALIGNED_SCORE, unknown=unknown)
        frames = self._decoder.n_frames()
        least = NARROW_LEAST_SCORE if 0 < measure_bandwidth(samples, SPEECH_RATE) < NARROW_HZ else LEAST_SCORE
        score = (math.log(aligned.score) - free) * SCORE_UNIT / frames - least
        return TextAlignment(score=round(max(score, UNALIGNED_SCORE), 3), words=self._time_words(spoken), unknown=unknown)

    def locate(self, samples: Samples, words: Sequence[str], starts: Sequence[int] = ()) -> tuple[AlignedUnit, ...]:
        spoken, _ = self._find_pronunciations(words)
        if not spoken:
            return ()
        end = len(spoken) + 1
        likely = 1.0 / len(spoken)
        steps: list[tuple[int, int, float] | tuple[int, int, float, str]] = [
            (0, position, likely) for position in range(1, end)
        ]  # can begin before any word
        steps += [(position, position + 1, 0.99, word) for position, (_, word) in enumerate(spoken, start=1)]
        steps += [(position, end + 1, 0.01) for position in range(2, end + 1)]  # can end after any word
        begins = find_starts([index for index, _ in spoken], starts)
        steps += [(before + 1, behind + 1, SKIP_PROBABILITY) for before, behind in itertools.pairwise(begins)]
        self._decoder.add_fsg("part", self._decoder.create_fsg("part", 0, end + 1, steps))
        self._decoder.activate_search("part")
        found = self._decode(samples)
        if found is None:
            return ()
        names = [remove_variant(segment.word) for segment in self._list_words()]
        run = _find_run([word for _, word in spoken], names, dict(itertools.pairwise(begins)))
        return self._time_words([spoken[position] for position in run])

    def _score_free_phones(self, samples: Samples) -> float | None:
        """Return the logarithm of the score of the best sequence of phones, without a text; None if there is none. It takes longer than an
        alignment, and several texts are compared with the same sound one after the other."""
        sound = samples.tobytes()
        if sound != self._free[0]:
            self._decoder.activate_search("phones")
            found = self._decode(samples)
            self._free = sound, None if found is None else math.log(found.score)
        return self._free[1]

    def _decode(self, samples: Samples) -> Hypothesis | None:
        """Return the hypothesis of the active search for a whole clip, or None."""
        waves = (np.clip(samples, -1, 1) * 32767).astype(np.int16)
        self._decoder.start_utt()
        self._decoder.process_raw(waves.tobytes(), full_utt=True)  # with all frames at once, nothing depends on earlier clips
        self._decoder.end_utt()
        return self._decoder.hyp()

    def _list_words(self) -> list[Segment]:
        """Return the segments of the last hypothesis with a word of the dictionary. Others are fillers: silence and noise, such as `<sil>`,
        `[NOISE]` and `+SPN+`; their names depend on the model."""
        return [one for one in self._decoder.seg() if one.word and SPOKEN.fullmatch(remove_variant(one.word))]

    def _find_pronunciations(self, words: Sequence[str]) -> tuple[list[tuple[int, str]], int]:
        """Return (index of the word, entry of the dictionary), and the number of words that the dictionary lacks."""
        spoken: list[tuple[int, str]] = []
        unknown = 0
        for index, word in enumerate(words):
            entries = SPOKEN.findall(spell_numbers(word.lower().replace("’", "'")))
            known = not any(character.isalpha() and not character.isascii() for character in word)
            for entry in entries:
                if entry in self._guessed or self._decoder.lookup_word(entry) is None:
                    known = False
                    if entry not in self._guessed:
                        self._guessed.add(entry)
                        self._decoder.add_word(entry, " ".join(PHONES[letter] for letter in entry if letter in PHONES), update=True)
                spoken.append((index, entry))
            unknown += not known and any(character.isalnum() for character in word)
        return spoken, unknown

    def _time_words(self, spoken: Sequence[tuple[int, str]]) -> tuple[AlignedUnit, ...]:
        """Return the times of the last hypothesis, which contains all of `spoken`."""
        times: dict[int, tuple[int, int]] = {}
        for (index, _), one in zip(spoken, self._list_words(), strict=True):
            times[index] = (times.get(index, (one.start_frame, 0))[0], one.end_frame + 1)
        return tuple(AlignedUnit(index, first / FRAMES_PER_SECOND, last / FRAMES_PER_SECOND) for index, (first, last) in times.items())


def open_pocketsphinx_aligner(option: str) -> PocketsphinxAligner:
    """Open the aligner. Raises `UserError`, in the name of the command-line `option`, if the package is not installed."""
    try:
        installed = version(NAME)
    except PackageNotFoundError as error:
        raise UserError(f"{option} {NAME}: the package is not installed; pip install 'overtone[align]'") from error
    return PocketsphinxAligner(f"{NAME}-{installed}-{FORM}")


def _make_decoder() -> Decoder:
    from pocketsphinx import Decoder, get_model_path

    decoder = Decoder(
        lm=None, samprate=SPEECH_RATE, loglevel="FATAL", cmn="batch", lw=LANGUAGE_WEIGHT, beam=BEAM, pbeam=BEAM, wbeam=WORD_BEAM,
        compallsen=True,  # otherwise each frame is normalised by the best of the active states, and two searches do not compare
        allphone_ci=True,  # phones in context would take 100 times as long
    )  # fmt: skip
    decoder.add_allphone_file("phones", get_model_path(PHONE_MODEL))
    return decoder


def remove_variant(word: str) -> str:
    """Return `read` of `read(2)`, an alternative pronunciation."""
    return VARIANT.sub("", word)


def _find_run(words: Sequence[str], run: Sequence[str], skips: Mapping[int, int]) -> list[int]:
    """Return the positions in `words` of the words of `run`, which are neighbours except for passages that are left out; [] if there are
    none. `skips`: first word of a passage → first word behind it."""
    reached: list[dict[int, int]] = [{at: -1 for at, word in enumerate(words) if run and word == run[0]}]
    for name in run[1:]:
        following: dict[int, int] = {}
        for before in reached[-1]:
            after: int | None = before + 1
            while after is not None and after < len(words):
                if words[after] == name:
                    following.setdefault(after, before)
                after = skips.get(after)
        reached.append(following)
    positions = [min(reached[-1])] if reached[-1] else []
    for origins in reached[:0:-1] if positions else ():
        positions.append(origins[positions[-1]])
    return positions[::-1]
