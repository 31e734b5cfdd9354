"""The English of the demo models: sentences with a vocabulary of 200 words, split into training and held-out sentences.

No two words sound the same, so the audio alone determines the words.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from random import Random
from typing import Literal

Split = Literal["train", "held_out"]


def _split_list(words: str, between: str = " ") -> list[str]:
    return words.split(between)


NAMES = _split_list("Anna Peter Martin Julia Robert Helen Daniel Laura Thomas Emily Oliver Sophie")
ADJECTIVES = _split_list(
    "small large old young green yellow quiet bright dark heavy gentle broken golden silver simple narrow "
    "distant hidden early empty famous lonely modern purple"
)
NOUNS = _split_list(
    "house river garden teacher doctor farmer child engine bridge window letter table market mountain village captain sailor forest "
    "kitchen school station island machine picture harbor painter winner dog horse bird train boat book door lamp clock basket blanket "
    "bottle camera carpet ladder mirror pencil piano rabbit ticket wagon violin turtle pumpkin balloon hammer teapot orchard"
)
VERBS = _split_list(
    "opens closes finds carries follows watches paints builds cleans brings holds leaves moves repairs visits remembers describes counts "
    "sells needs borrows admires discovers protects"
)
ADVERBS = _split_list("slowly quickly often never always quietly usually carefully again gladly")
PREPOSITIONS = _split_list("near behind beside under across inside around outside")
PLACES = _split_list("house river garden bridge market village forest kitchen school station island harbor library castle theater valley")
NUMBERS = _split_list("three five six seven nine ten twelve twenty thirty forty fifty hundred")
THINGS = _split_list("books letters boats horses birds windows lamps apples stones coins bottles candles flowers pictures tickets baskets")
TIMES = _split_list(
    "today,tomorrow,in the morning,in the evening,at midnight,on Sunday,on Monday,on Friday,after dinner,before winter", ","
)
DETERMINERS = _split_list("the a this every our")
HELD_OUT_SHARE = 20
"""One sentence in this many is held out."""


def generate_sentences(seed: int, split: Split) -> Iterator[str]:
    """Endless and without repetitions; the same for the same seed. Each sentence has a capital and a final mark."""
    random, seen = Random(seed), set[str]()
    while True:
        sentence = _draw_sentence(random)
        if find_split(sentence) == split and sentence not in seen:
            seen.add(sentence)
            yield sentence


def find_split(sentence: str) -> Split:
    """Depends on the sentence alone: no sentence is in both splits, for any seed and number of sentences."""
    return "train" if zlib.crc32(sentence.encode()) % HELD_OUT_SHARE else "held_out"


def split_words(sentence: str) -> list[str]:
    """Words in lower case, without punctuation, as counted for the WER."""
    return re.findall(r"[a-z]+", sentence.lower())


def list_words() -> list[str]:
    """All words of the grammar, in lower case, sorted."""
    lists = (NAMES, ADJECTIVES, NOUNS, VERBS, ADVERBS, PREPOSITIONS, PLACES, NUMBERS, THINGS, TIMES, DETERMINERS)
    frames = [re.sub(r"\{\w+\}", "", frame) for frame, _ in FRAMES]
    return sorted({word for text in (*(" ".join(words) for words in lists), *frames, "an") for word in split_words(text)})


SLOTS = {
    "name": NAMES,
    "adjective": ADJECTIVES,
    "noun": NOUNS,
    "verb": VERBS,
    "adverb": ADVERBS,
    "where": PREPOSITIONS,
    "place": PLACES,
    "number": NUMBERS,
    "things": THINGS,
    "time": TIMES,
    "any": DETERMINERS,
}
FRAMES: list[tuple[str, int]] = [
    ("{who} {verb} {what}.", 2),
    ("{who} {verb} {what} {where} the {place}.", 3),
    ("{who} {adverb} {verb} {number} {things}.", 2),
    ("There are {number} {things} {where} the {place}.", 2),
    ("{name} and {name} are {where} the {place} {time}.", 2),
    ("When {who} {verb} {what}, {who} {adverb} {verb} {what}.", 2),
    ("Please bring {number} {things} to {what}.", 2),
    ("{what} was {adjective} and {adjective}, but {what} was {adjective}.", 2),
    ("{who} {verb} {what} {time}, because {what} is {adjective}.", 2),
    ("Who {verb} the {adjective} {noun}?", 1),
    ("Is the {noun} {adjective} or {adjective}?", 1),
    ("Where is {what}?", 1),
]
"""Sentence frames with their weights. `who` is a name or `what`; `what` is a noun phrase."""


def _draw_sentence(random: Random) -> str:
    frame = random.choices([frame for frame, _ in FRAMES], [weight for _, weight in FRAMES])[0]
    sentence = re.sub(r"\{(\w+)\}", lambda slot: _fill_slot(slot[1], random), frame)
    return sentence[0].upper() + sentence[1:]


def _fill_slot(slot: str, random: Random) -> str:
    if slot == "who":
        slot = "name" if random.random() < 0.3 else "what"
    if slot == "what":
        return f"the {random.choice(ADJECTIVES)} {random.choice(NOUNS)}" if random.random() < 0.6 else _draw_plain_noun(random)
    return random.choice(SLOTS[slot])


def _draw_plain_noun(random: Random) -> str:
    noun = random.choice(NOUNS)
    determiner = random.choice(DETERMINERS)
    return f"{'an' if determiner == 'a' and noun[0] in 'aeiou' else determiner} {noun}"
