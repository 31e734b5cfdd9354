"""The Viterbi alignment against the enumeration of all paths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from overtone.data_prep.alignment import ctc_viterbi

BLANK, VOCABULARY = 0, 3


def make_emissions(seed: int, frames: int) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(frames, VOCABULARY)).astype(np.float32) * 2
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def collapse(path: tuple[int, ...]) -> list[int]:
    """What a path of tokens emits: repetitions joined, blanks removed."""
    return [token for token, _ in itertools.groupby(path) if token != BLANK]


def enumerate_best(emissions: np.ndarray, wanted: list[list[int]]) -> float:
    paths = itertools.product(range(VOCABULARY), repeat=len(emissions))
    sums = [sum(emissions[at, token] for at, token in enumerate(path)) for path in paths if collapse(path) in wanted]
    return float(max(sums, default=-np.inf))


@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 1], [2, 1, 2], [1, 1, 2], [1, 2, 2, 1]])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_path_is_the_best_of_all(tokens: list[int], seed: int) -> None:
    emissions = make_emissions(seed, 6)
    path = ctc_viterbi.align_tokens(emissions, tokens, BLANK)
    assert path is not None
    assert path.log_prob == pytest.approx(enumerate_best(emissions, [tokens]), abs=1e-4)
    assert [span.position for span in path.spans] == list(range(len(tokens)))
    emitted = np.zeros(6, int)
    for span in path.spans:
        emitted[span.start : span.stop] = tokens[span.position]
    assert collapse(tuple(emitted)) == tokens
    assert emissions[np.arange(6), emitted].sum() == pytest.approx(path.log_prob, abs=1e-4)


@pytest.mark.parametrize("seed", [3, 4])
def test_a_part_is_the_best_run_of_neighbouring_tokens(seed: int) -> None:
    emissions, tokens = make_emissions(seed, 5), [1, 2, 2, 1]
    path = ctc_viterbi.align_tokens(emissions, tokens, BLANK, part=True)
    runs = [tokens[start:stop] for start in range(5) for stop in range(start, 5)]
    assert path is not None
    assert path.log_prob == pytest.approx(enumerate_best(emissions, runs), abs=1e-4)


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_whole_passages_may_be_left_out_between_others(seed: int) -> None:
    emissions, tokens, starts = make_emissions(seed, 6), [1, 2, 1, 1, 2], [0, 1, 3, 4]
    path = ctc_viterbi.align_tokens(emissions, tokens, BLANK, part=True, starts=starts)
    assert path is not None
    emitted = [tokens[span.position] for span in path.spans]
    positions = [span.position for span in path.spans]
    skipped = [at for at in range(positions[0], positions[-1]) if at not in positions]
    assert positions == sorted(positions)
    assert skipped in ([], [1, 2], [3], [1, 2, 3]), "whole passages, or nothing"
    assert path.log_prob <= enumerate_best(emissions, [emitted]) + 1e-4
    runs = [tokens[start:stop] for start in range(6) for stop in range(start, 6)]
    assert path.log_prob >= enumerate_best(emissions, runs) - 1e-4


def test_a_passage_that_is_not_emitted_is_passed_over_at_a_blank() -> None:
    emissions = np.full((6, 4), -8.0, np.float32)
    emissions[np.arange(6), [0, 1, 0, 0, 2, 0]] = 0.0
    path = ctc_viterbi.align_tokens(emissions, [1, 3, 3, 2], BLANK, part=True, starts=[0, 1, 3])
    assert path is not None and path.log_prob == 0.0
    assert [span.position for span in path.spans] == [0, 3]
    neighbours = ctc_viterbi.align_tokens(emissions, [1, 3, 3, 2], BLANK, part=True)
    assert neighbours is not None and neighbours.log_prob <= -8


def test_a_text_longer_than_its_audio_has_no_path() -> None:
    assert ctc_viterbi.align_tokens(make_emissions(0, 2), [1, 1], BLANK) is None  # a blank is needed between the two
    assert ctc_viterbi.align_tokens(make_emissions(0, 0), [1], BLANK) is None


def test_the_free_path_takes_the_best_token_of_every_frame() -> None:
    emissions = make_emissions(0, 5)
    paths = list(itertools.product(range(VOCABULARY), repeat=5))
    best = max(sum(emissions[at, token] for at, token in enumerate(path)) for path in paths)
    assert ctc_viterbi.score_free_path(emissions) == pytest.approx(float(best), abs=1e-4)
