"""Where recordings are cut, on generated speech and pauses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio
from overtone.data_prep.segmentation.clip_segmentation import (
    CutPoint,
    Lengths,
    TextUnit,
    choose_pieces,
    find_cuts,
    make_outer_cuts,
    score_sentence_end,
    score_utterance_end,
)
from overtone.data_prep.segmentation.vad import Region, list_gaps

SECOND = MASTER_RATE


def at(*seconds: float) -> list[int]:
    return [round(one * SECOND) for one in seconds]


NOISE = np.random.default_rng(0).standard_normal(60 * SECOND, np.float32)
"""Made once: the searches below make hundreds of recordings of it."""


def drawn(pairs: list[tuple[float, float]], length: float) -> tuple[list[Region], Audio]:
    """Speech as noise in the given seconds, near silence elsewhere."""
    samples = np.float32(1e-4) * NOISE[: round(length * SECOND)]
    assert len(samples) == round(length * SECOND)
    regions = [Region(*at(*pair)) for pair in pairs]
    for region in regions:
        samples[region.start : region.stop] += np.float32(0.1) * NOISE[SECOND:][region.start : region.stop]
    return regions, Audio(samples, MASTER_RATE)


def unit(text: str, start: float, stop: float) -> TextUnit:
    return TextUnit(text=f" {text}", start=round(start * SECOND), stop=round(stop * SECOND))


TALK = [(0.5, 3.5), (3.8, 6.0), (6.9, 10.0), (10.8, 14.0)]  # the pause at 3.5 lies inside the first utterance
REGIONS, AUDIO = drawn(TALK, 15.0)
EXACT = [(0.5, 6.0), (6.9, 10.0), (10.8, 14.0)]


def clips(units: list[TextUnit], tolerance: float = 1.0):
    cuts = find_cuts(units, REGIONS, len(AUDIO.samples), tolerance)
    return choose_pieces(cuts, units, AUDIO, Lengths(), score_utterance_end)


def test_utterances_become_clips_and_a_pause_inside_one_is_not_cut() -> None:
    pieces = clips([unit(text, *times) for text, times in zip("abc", EXACT, strict=True)])
    assert [piece.text for piece in pieces] == ["a", "b", "c"]
    for piece, (start, stop) in zip(pieces, EXACT, strict=True):
        assert 0.05 * SECOND <= start * SECOND - piece.start <= 0.10 * SECOND
        assert 0.05 * SECOND <= piece.stop - stop * SECOND <= 0.12 * SECOND  # the pause is quiet at once


@pytest.mark.parametrize(("decay", "shortest", "longest"), [(0.02, 0.13, 0.17), (1.0, 0.10, 0.20)])
def test_a_clip_ends_where_the_sound_has_faded(decay, shortest, longest) -> None:
    """`decay`: seconds in which the reverberation after the speech falls to 1/e. With the long one it is still loud at the maximum tail."""
    samples = AUDIO.samples.copy()
    stop, fade = round(14.0 * SECOND), np.exp(-np.arange(SECOND // 2) / SECOND / decay, dtype=np.float32)
    samples[stop : stop + len(fade)] += np.float32(0.1) * NOISE[: len(fade)] * fade
    units = [unit(text, *times) for text, times in zip("abc", EXACT, strict=True)]
    cuts = find_cuts(units, REGIONS, len(samples), 1.0)
    last = choose_pieces(cuts, units, Audio(samples, MASTER_RATE), Lengths(), score_utterance_end)[-1]
    assert shortest <= (last.stop - stop) / SECOND <= longest


@given(st.lists(st.floats(-0.3, 0.3), min_size=6, max_size=6))
def test_rough_times_choose_the_same_pauses(errors) -> None:
    exact = [unit(text, *times) for text, times in zip("abc", EXACT, strict=True)]
    rough = [
        unit(text, max(0.0, start + errors[2 * index]), stop + errors[2 * index + 1])
        for index, (text, (start, stop)) in enumerate(zip("abc", EXACT, strict=True))
    ]
    assert [piece[:2] for piece in clips(rough)] == [piece[:2] for piece in clips(exact)]


def test_speech_without_text_is_a_piece_without_text() -> None:
    pieces = clips([unit("a", 0.5, 6.0), unit("c", 10.8, 14.0)])
    assert [piece.text for piece in pieces] == ["a", "", "c"]
    pieces = clips([unit("b", 6.9, 10.0)])
    assert [piece.text for piece in pieces if piece.text] == ["b"]
    assert [round(piece.start / SECOND) for piece in pieces if piece.text] == [7]


def test_utterances_without_a_pause_between_them_stay_together() -> None:
    units = [unit("a", 0.5, 2.0), unit("b", 2.0, 6.0), unit("c", 6.9, 10.0), unit("d", 10.8, 14.0)]
    assert [piece.text for piece in clips(units, tolerance=0.3)] == ["a b", "c", "d"]


def test_an_utterance_too_short_alone_joins_a_neighbour() -> None:
    regions, audio = drawn([(0.5, 4.0), (4.6, 5.0), (5.6, 9.0)], 10.0)
    units = [unit("long.", 0.5, 4.0), unit("No.", 4.6, 5.0), unit("longer.", 5.6, 9.0)]
    pieces = choose_pieces(find_cuts(units, regions, len(audio.samples), 1.0), units, audio, Lengths(), score_utterance_end)
    assert sorted(piece.text for piece in pieces) in (["No. longer.", "long."], ["long. No.", "longer."])


def test_words_are_gathered_towards_the_target_and_sentences_are_preferred() -> None:
    times = [(0.5 + 1.5 * k, 1.7 + 1.5 * k) for k in range(16)]
    regions, audio = drawn(times, 25.0)
    words = [unit(f"w{k}{'.' if k in (3, 7, 11, 15) else ''}", *time) for k, time in enumerate(times)]
    pieces = choose_pieces(find_cuts(words, regions, len(audio.samples), 0.4), words, audio, Lengths(), score_sentence_end)
    assert [piece.text[-1] for piece in pieces] == ["."] * 4
    assert " ".join(piece.text for piece in pieces) == " ".join(word.text.strip() for word in words)


def test_speech_without_a_pause_stays_one_piece_even_if_it_is_too_long() -> None:
    regions, audio = drawn([(0.5, 30.0)], 31.0)
    units = [unit("a", 0.5, 15.0), unit("b", 15.0, 30.0)]
    pieces = choose_pieces(find_cuts(units, regions, len(audio.samples), 1.0), units, audio, Lengths(), score_utterance_end)
    assert [piece.text for piece in pieces] == ["a b"]


def test_a_long_pause_divides_what_would_fit_in_one_clip() -> None:
    regions, audio = drawn([(0.5, 2.5), (5.0, 7.0)], 8.0)
    units = [unit("a", 0.5, 2.5), unit("b", 5.0, 7.0)]
    pieces = choose_pieces(find_cuts(units, regions, len(audio.samples), 0.4), units, audio, Lengths(target=6), score_sentence_end)
    assert [piece.text for piece in pieces] == ["a", "b"]


def cut_spoken(words: list[tuple[str, float, float]]) -> list[str]:
    """Texts of the clips of a recording with a stretch of speech for each word (text, start and stop in seconds)."""
    regions, audio = drawn([(start, stop) for _, start, stop in words], words[-1][2] + 0.5)
    units = [unit(*word) for word in words]
    pieces = choose_pieces(find_cuts(units, regions, len(audio.samples), 0.4), units, audio, Lengths(), score_sentence_end)
    return [piece.text for piece in pieces]


def test_a_sentence_is_not_given_up_for_two_short_words_around_it() -> None:
    words = [("Hello.", 0.5, 1.2), ("The", 3.2, 7.0), ("sentence.", 7.3, 11.2), ("Bye.", 13.2, 13.9)]
    assert cut_spoken(words) == ["Hello.", "The sentence.", "Bye."]


def test_a_good_sentence_does_not_join_a_word_that_makes_it_mostly_silent() -> None:
    words = [("Yes.", 0.5, 0.8), ("No.", 2.2, 2.5), ("Maybe", 3.9, 4.2), ("so", 5.6, 5.8), ("indeed.", 7.2, 8.4)]
    assert cut_spoken(words)[-1] == "indeed."


def make_sentence(first: float, words: int, seconds: float = 1.2, pause: float = 0.3, end: str = ".") -> list[tuple[str, float, float]]:
    times = [first + k * (seconds + pause) for k in range(words)]
    return [(f"w{k}{end * (k == words - 1)}", time, time + seconds) for k, time in enumerate(times)]


def test_a_sentence_that_fits_is_kept_whole_though_it_is_far_above_the_target() -> None:
    """12.9 s and a target of 6 s; the next sentence has 1.5 s."""
    assert [text.count("w") for text in cut_spoken([*make_sentence(0.5, 9), *make_sentence(14.0, 1, 1.5)])] == [9, 1]


def test_a_sentence_longer_than_a_clip_may_be_is_cut_near_the_target() -> None:
    counts = [text.count("w") for text in cut_spoken(make_sentence(0.5, 20))]
    assert sum(counts) == 20 and len(counts) == 5


def test_text_without_marks_is_cut_near_the_target() -> None:
    assert len(cut_spoken(make_sentence(0.5, 12, end=""))) == 3


def test_a_long_pause_inside_a_sentence_is_still_cut_and_each_part_is_kept_whole() -> None:
    words = [(text.removesuffix("."), *times) for text, *times in make_sentence(0.5, 6)]
    assert [text.count("w") for text in cut_spoken([*words, *make_sentence(12.0, 7)])][-1] == 7


def test_single_clip_covers_all_speech() -> None:
    units = [unit("all of it", 0, 15)]
    pieces = choose_pieces(make_outer_cuts(units, REGIONS, len(AUDIO.samples)), units, AUDIO, Lengths(), score_utterance_end)
    assert len(pieces) == 1
    assert pieces[0].start < REGIONS[0].start
    assert pieces[0].stop > REGIONS[-1].stop


@pytest.mark.parametrize(
    ("text", "order"),
    [("end.", 2), ('end?"', 2), ("and,", 1), ("and", 0), ("句。", 2), ("句，", 1), ("句。」", 2), ("جملة؟", 2), ("جملة،", 1), ("वाक्य।", 2)],
)
def test_a_cut_after_a_sentence_scores_above_one_after_a_comma_or_a_word(text, order) -> None:
    bonuses = sorted({score_sentence_end(unit(word, 0, 1)) for word in ("end.", "and,", "and")})
    assert score_sentence_end(unit(text, 0, 1)) == bonuses[order]


@st.composite
def recordings(draw):
    steps = draw(st.lists(st.tuples(st.floats(0.05, 2.0), st.floats(0.2, 5.0)), min_size=1, max_size=8))
    pairs, now = [], 0.0
    for pause, speech in steps:
        pairs.append((now + pause, now + pause + speech))
        now += pause + speech
    times = sorted(draw(st.lists(st.floats(0, now), min_size=2, max_size=12)))
    units = [unit(f"u{index}.", *pair) for index, pair in enumerate(zip(times[::2], times[1::2]))]
    return pairs, now + draw(st.floats(0, 1)), units


@given(recordings(), st.sampled_from([score_sentence_end, score_utterance_end]))
def test_no_speech_is_cut_lost_or_used_twice_for_any_text(case, bonus) -> None:
    pairs, length, units = case
    regions, audio = drawn(pairs, length)
    pieces = choose_pieces(find_cuts(units, regions, len(audio.samples), 1.0), units, audio, Lengths(), bonus)
    assert [one.text for piece in pieces for one in piece.units] == [one.text for one in units]
    assert all(one.stop <= other.start for one, other in itertools.pairwise(pieces))
    for region in regions:
        assert sum(piece.start <= region.start and region.stop <= piece.stop for piece in pieces) == 1
    between = list_gaps(regions, len(audio.samples))
    for piece in pieces:
        assert any(gap.start <= piece.start <= gap.stop and (gap == between[0] or piece.start >= gap.middle) for gap in between)
        assert any(gap.start <= piece.stop <= gap.stop and (gap == between[-1] or piece.stop <= gap.middle) for gap in between)
    outside = [
        Region(left, right) for left, right in zip([0, *(one.stop for one in pieces)], [*(one.start for one in pieces), length_of(audio)])
    ]
    assert sum(one.stop - one.start for one in [*pieces, *outside]) == length_of(audio)
    assert min(one.stop - one.start for one in [*pieces, *outside]) >= 0


def length_of(audio: Audio) -> int:
    return len(audio.samples)


LENGTHS = Lengths(target=4.0, shortest=1.5, longest=8.0)


def spoiled(left: CutPoint, right: CutPoint, cuts: list[CutPoint], units: list[TextUnit], audio: Audio) -> bool:
    """True if the rules would reject the clip between two cuts, or if it would contain speech without text."""
    (alone,) = choose_pieces([left, right], units, audio, LENGTHS, score_sentence_end)
    inner = [cut for cut in cuts if left.gap.start < cut.gap.start < right.gap.start]
    stretches = [*itertools.pairwise([left, *inner, right])]
    if not alone.text:
        return bool(inner)
    seconds = (alone.stop - alone.start) / SECOND
    speech = sum(Region(one.gap.stop, other.gap.start).seconds for one, other in stretches)
    return (
        any(one.unit == other.unit for one, other in stretches)
        or any(cut.gap.seconds > 1.5 for cut in inner)
        or not LENGTHS.shortest <= seconds <= LENGTHS.longest
        or speech < 0.5 * seconds
    )


@st.composite
def spoken(draw, longest_pause):
    """A word in each stretch of speech, whose times miss by less than half of the way to the next; not every word is known."""
    steps = draw(st.lists(st.tuples(st.floats(0.2, longest_pause), st.floats(0.3, 3.0)), min_size=2, max_size=8))
    pairs, now = [], 0.0
    for pause, speech in steps:
        pairs.append((now + pause, now + pause + speech))
        now += pause + speech
    wrong = draw(st.lists(st.floats(-0.09, 0.09), min_size=2 * len(pairs), max_size=2 * len(pairs)))
    words = [unit(f"w{k}", start + wrong[2 * k], stop + wrong[2 * k + 1]) for k, (start, stop) in enumerate(pairs)]
    return pairs, now + 0.5, words


HALF_A_PAUSE = ([(1.0, 1.5), (2.5, 3.0)], 3.5, [unit("w0", 1.0, 1.5), unit("w1", 2.5, 3.0)])
"""One clip would be long enough, but more than half of it a pause."""


@given(spoken(longest_pause=2.0), st.sets(st.integers(0, 7), max_size=1))
@example(HALF_A_PAUSE, set())
def test_no_clip_is_unusable_where_another_division_has_only_usable_ones(case, untold) -> None:
    """Against all divisions that there are, sometimes with a word that the text leaves out."""
    pairs, length, words = case
    units = [word for index, word in enumerate(words) if index not in untold] or words
    regions, audio = drawn(pairs, length)
    cuts = find_cuts(units, regions, len(audio.samples), 0.4)
    ways = [[cuts[0], *inner, cuts[-1]] for count in range(len(cuts) - 1) for inner in itertools.combinations(cuts[1:-1], count)]
    bad = {(left, right): spoiled(left, right, cuts, units, audio) for left, right in itertools.combinations(cuts, 2)}
    possible = any(not any(bad[pair] for pair in itertools.pairwise(way)) for way in ways)
    starts = [piece.start for piece in choose_pieces(cuts, units, audio, LENGTHS, score_sentence_end)]
    cut_of = {choose_pieces([cut, cuts[-1]], units, audio, LENGTHS, score_sentence_end)[0].start: cut for cut in cuts[:-1]}
    chosen = [*(cut_of[start] for start in starts), cuts[-1]]
    event("possible" if possible else "impossible")
    assert not (possible and any(bad[pair] for pair in itertools.pairwise(chosen)))


@given(spoken(longest_pause=0.8))
def test_each_clip_has_exactly_the_words_inside_it_even_with_wrong_word_times(case) -> None:
    pairs, length, words = case
    regions, audio = drawn(pairs, length)
    for piece in choose_pieces(find_cuts(words, regions, len(audio.samples), 0.4), words, audio, Lengths(), score_sentence_end):
        assert piece.units == tuple(
            word for word, region in zip(words, regions, strict=True) if piece.start <= region.start and region.stop <= piece.stop
        )


def test_the_shortest_length_counts_the_margins_that_a_clip_gets() -> None:
    """0.8 s of speech between pauses of 0.1 s would be a clip of 0.9 s; with lead and tail as asked for it would have been one of 1.1 s."""
    regions, audio = drawn([(0.5, 4.0), (4.1, 4.9), (5.0, 9.0)], 10.0)
    units = [unit("long.", 0.5, 4.0), unit("Short.", 4.1, 4.9), unit("longer.", 5.0, 9.0)]
    pieces = choose_pieces(find_cuts(units, regions, len(audio.samples), 0.4), units, audio, Lengths(), score_utterance_end)
    assert len(pieces) == 2
    assert all((piece.stop - piece.start) / SECOND >= 1.0 for piece in pieces)


def test_speech_without_text_joins_no_clip_even_if_both_neighbours_are_too_short() -> None:
    regions, audio = drawn([(0.5, 1.0), (1.3, 2.3), (2.6, 3.1)], 4.0)
    units = [unit("Yes.", 0.5, 1.0), unit("No.", 2.6, 3.1)]
    pieces = choose_pieces(find_cuts(units, regions, len(audio.samples), 0.1), units, audio, Lengths(), score_sentence_end)
    assert [piece.text for piece in pieces] == ["Yes.", "", "No."]


def test_a_failed_transcription_does_not_affect_the_neighbouring_clips() -> None:
    regions, audio = drawn([(0.5, 3.0), (3.4, 5.0), (5.4, 8.0)], 9.0)
    failed = TextUnit(text="", start=round(3.2 * SECOND), stop=round(5.2 * SECOND), error="RuntimeError: no")
    units = [unit("before.", 0.5, 3.0), failed, unit("after.", 5.4, 8.0)]
    pieces = choose_pieces(find_cuts(units, regions, len(audio.samples), 0.4), units, audio, Lengths(), score_sentence_end)
    assert [(piece.text, [one.error for one in piece.units]) for piece in pieces] == [
        ("before.", [None]),
        ("", ["RuntimeError: no"]),
        ("after.", [None]),
    ]


def cuts_between_two_words(pause_seconds: float, stated_end: float = 1.0, tolerance: float = 1.0) -> int:
    """Number of cuts inside a recording of two words, one second each. `stated_end`: end of the first word in seconds, by its text."""
    second, pause, stated = MASTER_RATE, round(pause_seconds * MASTER_RATE), round(stated_end * MASTER_RATE)
    length = 2 * second + pause
    units = [TextUnit(text="one", start=0, stop=stated), TextUnit(text=" two", start=stated, stop=length)]
    return len(find_cuts(units, [Region(0, second), Region(second + pause, length)], length, tolerance)) - 2


def test_a_pause_shorter_than_90_ms_is_not_cut() -> None:
    assert (cuts_between_two_words(0.08), cuts_between_two_words(0.1)) == (0, 1)


def test_the_tolerance_of_stated_times_is_in_seconds() -> None:
    assert (cuts_between_two_words(0.1, 0.2, tolerance=0.7), cuts_between_two_words(0.1, 0.2, tolerance=0.9)) == (0, 1)


def test_no_piece_reaches_over_a_change_of_voice_though_one_is_too_short_for_it() -> None:
    words = [unit(text, *times) for text, times in zip("abcd", [(0.5, 3.4), (3.8, 6.0), (6.9, 10.0), (10.8, 14.0)], strict=True)]
    cuts = find_cuts(words, REGIONS, len(AUDIO.samples), 0.1)
    lengths = Lengths(target=6.0, shortest=4.0)
    freely = choose_pieces(cuts, words, AUDIO, lengths, score_sentence_end)
    apart = choose_pieces(cuts, words, AUDIO, lengths, score_sentence_end, at(3.65, 6.5))
    assert [piece.text for piece in freely] == ["a b", "c d"]
    assert [piece.text for piece in apart] == ["a", "b", "c d"]
