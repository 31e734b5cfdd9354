"""The demo grammar: the same sentences for the same seed, and none both in training and held out."""

from __future__ import annotations

from itertools import islice

from recipes.voice_clone.studio.corpus.grammar import HELD_OUT_SHARE, sentences, split_of, vocabulary, words_of


def test_sentences_follow_from_the_seed() -> None:
    assert list(islice(sentences(1, "train"), 50)) == list(islice(sentences(1, "train"), 50))
    assert list(islice(sentences(1, "train"), 50)) != list(islice(sentences(2, "train"), 50))


def test_no_sentence_is_in_both_splits_whatever_the_seeds() -> None:
    train = {sentence for seed in (0, 1) for sentence in islice(sentences(seed, "train"), 2000)}
    held_out = {sentence for seed in (0, 2) for sentence in islice(sentences(seed, "held_out"), 200)}
    assert len(train) > 3900 and len(held_out) > 350
    assert not train & held_out
    assert {split_of(sentence) for sentence in train} == {"train"}
    assert {split_of(sentence) for sentence in held_out} == {"held_out"}


def test_the_held_out_share_is_what_it_says() -> None:
    every = [next(iter(sentences(seed, split))) for seed in range(2) for split in ("train", "held_out")]
    assert all(sentence[0].isupper() and sentence[-1] in ".?" for sentence in every)
    texts = {f"Sentence {number}." for number in range(4000)}
    assert abs(sum(split_of(text) == "held_out" for text in texts) / len(texts) - 1 / HELD_OUT_SHARE) < 0.015


def test_sentences_use_the_whole_vocabulary_and_nothing_else() -> None:
    used = {word for sentence in islice(sentences(3, "train"), 3000) for word in words_of(sentence)}
    assert used == set(vocabulary())
    assert len(vocabulary()) == 200
