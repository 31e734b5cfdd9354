"""The English of the demo models: sentences of a few hundred words, and which of them no training may see.

No two words sound alike, so what was said can be told from the sound alone.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from random import Random
from typing import Literal

Split = Literal["train", "held_out"]


def _list(words: str, between: str = " ") -> list[str]:
    return words.split(between)


NAMES = _list("Anna Peter Martin Julia Robert Helen Daniel Laura Thomas Emily Oliver Sophie")
ADJECTIVES = _list(
    "small large old young green yellow quiet bright dark heavy gentle broken golden silver simple narrow "
    "distant hidden early empty famous lonely modern purple"
)
NOUNS = _list(
    "house river garden teacher doctor farmer child engine bridge window letter table market mountain village captain sailor forest "
    "kitchen school station island machine picture harbor painter winner dog horse bird train boat book door lamp clock basket blanket "
    "bottle camera carpet ladder mirror pencil piano rabbit ticket wagon violin turtle pumpkin balloon hammer teapot orchard"
)
VERBS = _list(
    "opens closes finds carries follows watches paints builds cleans brings holds leaves moves repairs visits remembers describes counts "
    "sells needs borrows admires discovers protects"
)
ADVERBS = _list("slowly quickly often never always quietly usually carefully again gladly")
PREPOSITIONS = _list("near behind beside under across inside around outside")
PLACES = _list("house river garden bridge market village forest kitchen school station island harbor library castle theater valley")
NUMBERS = _list("three five six seven nine ten twelve twenty thirty forty fifty hundred")
THINGS = _list("books letters boats horses birds windows lamps apples stones coins bottles candles flowers pictures tickets baskets")
TIMES = _list("today,tomorrow,in the morning,in the evening,at midnight,on Sunday,on Monday,on Friday,after dinner,before winter", ",")
DETERMINERS = _list("the a this every our")
HELD_OUT_SHARE = 20
"""One sentence in so many is held out."""


def sentences(seed: int, split: Split) -> Iterator[str]:
    """Endless; the same for the same seed, no sentence twice, each with a capital and its mark at the end."""
    random, seen = Random(seed), set[str]()
    while True:
        sentence = _sentence(random)
        if split_of(sentence) == split and sentence not in seen:
            seen.add(sentence)
            yield sentence


def split_of(sentence: str) -> Split:
    """Told by the sentence alone: whatever the seed or the number of sentences, none is in both."""
    return "train" if zlib.crc32(sentence.encode()) % HELD_OUT_SHARE else "held_out"


def words_of(sentence: str) -> list[str]:
    """In lower case, without marks: what a word error rate is counted on."""
    return re.findall(r"[a-z]+", sentence.lower())


def vocabulary() -> list[str]:
    """Every word that a sentence may hold, in lower case and in order."""
    lists = (NAMES, ADJECTIVES, NOUNS, VERBS, ADVERBS, PREPOSITIONS, PLACES, NUMBERS, THINGS, TIMES, DETERMINERS)
    frames = [re.sub(r"\{\w+\}", "", frame) for frame, _ in FRAMES]
    return sorted({word for text in (*(" ".join(words) for words in lists), *frames, "an") for word in words_of(text)})


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
"""Each with its weight. `who` is a name or what; `what` is a noun with what goes before it."""


def _sentence(random: Random) -> str:
    frame = random.choices([frame for frame, _ in FRAMES], [weight for _, weight in FRAMES])[0]
    sentence = re.sub(r"\{(\w+)\}", lambda slot: _filled(slot[1], random), frame)
    return sentence[0].upper() + sentence[1:]


def _filled(slot: str, random: Random) -> str:
    if slot == "who":
        slot = "name" if random.random() < 0.3 else "what"
    if slot == "what":
        return f"the {random.choice(ADJECTIVES)} {random.choice(NOUNS)}" if random.random() < 0.6 else _plain(random)
    return random.choice(SLOTS[slot])


def _plain(random: Random) -> str:
    noun = random.choice(NOUNS)
    determiner = random.choice(DETERMINERS)
    return f"{'an' if determiner == 'a' and noun[0] in 'aeiou' else determiner} {noun}"
