"""The demo grammar: the same sentences for the same seed, and no sentence in both splits."""

from __future__ import annotations

from itertools import islice

from workshop.demo_models.corpus.grammar import HELD_OUT_SHARE, find_split, generate_sentences, list_words, split_words


def test_sentences_depend_on_the_seed() -> None:
    assert list(islice(generate_sentences(1, "train"), 50)) == list(islice(generate_sentences(1, "train"), 50))
    assert list(islice(generate_sentences(1, "train"), 50)) != list(islice(generate_sentences(2, "train"), 50))


def test_no_sentence_is_in_both_splits_for_any_seeds() -> None:
    train = {sentence for seed in (0, 1) for sentence in islice(generate_sentences(seed, "train"), 2000)}
    held_out = {sentence for seed in (0, 2) for sentence in islice(generate_sentences(seed, "held_out"), 200)}
    assert len(train) > 3900 and len(held_out) > 350
    assert not train & held_out
    assert {find_split(sentence) for sentence in train} == {"train"}
    assert {find_split(sentence) for sentence in held_out} == {"held_out"}


def test_the_held_out_share_is_right() -> None:
    every = [next(iter(generate_sentences(seed, split))) for seed in range(2) for split in ("train", "held_out")]
    assert all(sentence[0].isupper() and sentence[-1] in ".?" for sentence in every)
    texts = {f"Sentence {number}." for number in range(4000)}
    assert abs(sum(find_split(text) == "held_out" for text in texts) / len(texts) - 1 / HELD_OUT_SHARE) < 0.015


def test_sentences_use_the_whole_vocabulary_and_nothing_else() -> None:
    used = {word for sentence in islice(generate_sentences(3, "train"), 3000) for word in split_words(sentence)}
    assert used == set(list_words())
    assert len(list_words()) == 200
