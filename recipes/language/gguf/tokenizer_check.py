"""Compares the tokenizer in a GGUF file with the trained one, and names the metadata that the trained one determines.

Compared are the kind of vocabulary, every token with its type, merges or scores, the pre-tokenizer, the special tokens, the tokens that end
generation, and the chat template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from overtone.finetune.errors import UserError
from overtone.finetune.storage.gguf_files import GgufHeader, MetadataValue
from overtone.recipes.language.gguf import pre_tokenizer_patterns
from overtone.recipes.language.tokenization.chat_template import make_chat
from overtone.recipes.language.tokenization.completion_boundary import begin_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
BYTE_LEVEL, SENTENCE_PIECE = "gpt2", "llama"
"""Kinds of vocabulary, as `tokenizer.ggml.model` names them: BPE of bytes, and BPE of characters in the manner of SentencePiece."""
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5
"""Types of tokens. llama.cpp finds tokens of the first three in a text before it divides the rest. SentencePiece's token for unknown
characters has the first."""
SPACE = "▁"
ENDS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>"}
    | {"<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>"}
    | {"<｜end▁of▁sentence｜>", "[e~["}
)
"""Texts of tokens at which llama.cpp ends an answer, whatever the metadata says (src/llama-vocab.cpp, special_eog_ids)."""
NORMALIZERS = frozenset({"NFC", "Prepend", "Replace", "Sequence"})
"""Normalizers that change nothing that llama.cpp keeps: normal form C of a text that has it, and SentencePiece's sign for a space."""


@dataclass(frozen=True)
class TrainedTokenizer:
    """A tokenizer of transformers as it was used in the training."""

    tokenizer: PreTrainedTokenizerBase
    stops: tuple[int, ...]
    """Ids at which generation ends."""

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The content of its tokenizer.json."""
        found: dict[str, Any] = json.loads(self.tokenizer.backend_tokenizer.to_str())
        return found

    @cached_property
    def kind(self) -> str:
        """`BYTE_LEVEL` or `SENTENCE_PIECE`. Raises `UserError` for any other."""
        model, normalizers = self.parts["model"], {step["type"] for step in list_steps(self.parts["normalizer"], "normalizers")}
        if model["type"] != "BPE" or not normalizers <= NORMALIZERS:
            raise UserError(
                f"an export as GGUF is possible for BPE tokenizers without normalization, and this one is {model['type']} with "
                f"{', '.join(sorted(normalizers)) or 'none'}; export with --format transformers, which vLLM serves"
            )
        if any(step["type"] == "ByteLevel" for step in list_steps(self.parts["decoder"], "decoders")):
            return BYTE_LEVEL
        if model["byte_fallback"]:
            return SENTENCE_PIECE
        raise UserError("the tokenizer has neither bytes nor a fallback to bytes, which llama.cpp needs; export with --format transformers")

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """In the order in which they are applied."""
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in self.parts["model"]["merges"])
        return [(left, right) for left, right in pairs]

    @cached_property
    def begins(self) -> bool:
        """True if llama.cpp is to add the beginning-of-text token before a text: if the tokenizer adds it, and a chat has it too.

        Where llama.cpp adds it, it removes it from what the chat template writes; where it does not, it reads it there.
        """
        if not begin_ids("", self.tokenizer):
            return False
        if self.tokenizer.chat_template is None:
            return True
        return make_chat([{"role": "user", "content": "a"}], None, self.tokenizer).render().startswith(self.tokenizer.bos_token)

    @cached_property
    def adds_space(self) -> bool:
        """True if a space comes before text that follows a special token."""
        special = next((token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special), "")
        ids = self.tokenizer(f"{special}a", add_special_tokens=False)["input_ids"]
        return str(self.tokenizer.convert_ids_to_tokens(ids[-1] if len(ids) < 3 else ids[1])).startswith(SPACE)


def list_steps(found: dict[str, Any] | None, inside: str) -> list[dict[str, Any]]:
    """Return the steps of a part of tokenizer.json, which may be a sequence. `inside`: its key for them."""
    if found is None:
        return []
    return [step for inner in found[inside] for step in list_steps(inner, inside)] if found["type"] == "Sequence" else [found]


def find_metadata(trained: TrainedTokenizer, header: GgufHeader) -> dict[str, MetadataValue]:
    """Return the metadata that the trained tokenizer determines and the converter guesses: key → value. `header`: of the file that it
    wrote.

    Raises `UserError` for a tokenizer that a file cannot express.
    """
    found: dict[str, MetadataValue] = {f"{KEY}add_bos_token": trained.begins, f"{KEY}add_eos_token": False}
    eos = header.metadata.get(f"{KEY}eos_token_id")
    unknown = [stop for stop in trained.stops if stop != eos and trained.tokenizer.convert_ids_to_tokens(stop) not in ENDS]
    names = ("eot", "eom")
    if len(unknown) > len(names):
        raise UserError(
            f"the training ends answers with the tokens {unknown}, and a GGUF file can name {len(names)} of them; export with --format "
            "transformers"
        )
    found |= {f"{KEY}{name}_token_id": stop for name, stop in zip(names, unknown)}
    types = header.metadata.get(f"{KEY}token_type", [])
    if (right := correct_types(trained, types)) != types:  # the converter knows added tokens by a file that transformers 5 does not write
        found[f"{KEY}token_type"] = right
    if trained.kind == SENTENCE_PIECE:
        found[f"{KEY}add_space_prefix"] = trained.adds_space
        if len(set(header.metadata.get(f"{KEY}scores", []))) < 3:  # the converter writes one score for all if there is no tokenizer.model
            found[f"{KEY}scores"] = compute_scores(trained, len(header.metadata.get(f"{KEY}tokens", [])))
    return found


def correct_types(trained: TrainedTokenizer, types: Sequence[int]) -> list[int]:
    """Return the types of a file, in which each added token has one by which llama.cpp finds it in a text."""
    right = [*types]
    for number, token in trained.tokenizer.added_tokens_decoder.items():
        if number < len(right) and right[number] not in accepted_types(trained, number, token.special):
            right[number] = CONTROL if token.special else USER_DEFINED
    return right


def accepted_types(trained: TrainedTokenizer, number: int, special: bool) -> set[int]:
    """Types that an added token may have."""
    unknown = {UNKNOWN} if number == trained.tokenizer.unk_token_id else set()
    return {CONTROL, *unknown} if special else {CONTROL, USER_DEFINED, *unknown}


def compute_scores(trained: TrainedTokenizer, count: int) -> list[float]:
    """Scores [count] by which llama.cpp merges in the order of the merges: the earlier one has the higher score."""
    scores, ids = [0.0] * count, trained.tokenizer.get_vocab()
    for rank, (left, right) in reversed([*enumerate(trained.merges)]):  # the first merge that makes a token counts
        scores[ids[left + right]] = -float(rank + 1)
    return scores


def find_differences(trained: TrainedTokenizer, header: GgufHeader) -> list[str]:
    """Return what in a file differs from the trained tokenizer."""
    metadata = header.metadata
    if metadata.get(f"{KEY}model") != trained.kind:
        return [f"the vocabulary is of the kind {metadata.get(f'{KEY}model')!r}, where the trained one is {trained.kind!r}"]
    tokens, types = metadata.get(f"{KEY}tokens", []), metadata.get(f"{KEY}token_type", [])
    if len(tokens) != len(types) or len(tokens) < len(trained.tokenizer):
        return [f"it has {len(tokens):,} tokens and {len(types):,} types of them, where the trained one has {len(trained.tokenizer):,}"]
    return [
        *_compare_tokens(trained, tokens, types),
        *(_compare_byte_level(trained, metadata) if trained.kind == BYTE_LEVEL else _compare_scores(trained, metadata)),
        *_compare_special_tokens(trained, metadata),
        *_compare_template(trained, metadata),
    ]


def splits_marks(header: GgufHeader) -> bool:
    """Return whether llama.cpp gives words with combining marks other tokens than the trained ones."""
    known = pre_tokenizer_patterns.PRE_TOKENIZERS.get(header.metadata.get(f"{KEY}pre", ""))
    return known is not None and known.splits_marks


def _compare_tokens(trained: TrainedTokenizer, tokens: Sequence[str], types: Sequence[int]) -> Iterator[str]:
    """The first token that differs in text or type."""
    added, vocabulary = trained.tokenizer.added_tokens_decoder, trained.tokenizer.get_vocab()
    for text, number in vocabulary.items():
        accepted = {text, text.replace(SPACE, " ")} if number in added else {text}
        if tokens[number] not in accepted:
            yield f"token {number} is {tokens[number]!r}, where the trained one is {text!r}"
            return
    for number, token in added.items():
        if types[number] not in accepted_types(trained, number, token.special):
            kind = "a control token, and the trained one is special" if token.special else "found in a text before that is divided"
            yield f"token {number} ({token.content}) is not {kind}"
            return
    if spare := [number for number in {*range(len(tokens))} - {*vocabulary.values()} if types[number] != UNUSED]:
        yield f"token {min(spare)} is {tokens[min(spare)]!r}, which the trained vocabulary lacks"


def _compare_byte_level(trained: TrainedTokenizer, metadata: Mapping[str, Any]) -> Iterator[str]:
    stored = metadata.get(f"{KEY}merges", [])
    expected = [" ".join(part.replace(" ", "Ġ") for part in merge) for merge in trained.merges]
    if len(stored) != len(expected):
        yield f"it has {len(stored):,} merges, where the trained one has {len(expected):,}"
    elif stored != expected:
        number = next(number for number, (one, other) in enumerate(zip(stored, expected)) if one != other)
        yield f"merge {number} is {stored[number]!r}, where the trained one is {expected[number]!r}"
    if (difference := pre_tokenizer_patterns.find_difference(metadata.get(f"{KEY}pre"), trained.tokenizer)) is not None:
        yield difference


def _compare_scores(trained: TrainedTokenizer, metadata: Mapping[str, Any]) -> Iterator[str]:
    """llama.cpp joins the two neighbours that make the token with the highest score. This is what the merges do if they list each pair of
    tokens whose texts make a token, in the order of the scores."""
    ids, scores = trained.tokenizer.get_vocab(), metadata.get(f"{KEY}scores", [])
    if len(scores) != len(metadata[f"{KEY}tokens"]):
        yield f"it has {len(scores):,} scores for {len(metadata[f'{KEY}tokens']):,} tokens"
        return
    made = [left + right for left, right in trained.merges]
    if late := next(((one, other) for one, other in pairwise(made) if scores[ids[one]] < scores[ids[other]]), None):
        yield f"the scores merge {late[1]!r} before {late[0]!r}, and the trained tokenizer merges {late[0]!r} first"
    known = {*trained.merges}
    for token in {*made}:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids and (left, right) not in known:
                yield f"the scores merge {left!r} and {right!r}, which the trained tokenizer never merges"
                return


def _compare_special_tokens(trained: TrainedTokenizer, metadata: Mapping[str, Any]) -> Iterator[str]:
    tokenizer = trained.tokenizer
    named = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "padding": tokenizer.pad_token_id}
    for name, expected in named.items():
        stored = metadata.get(f"{KEY}{name}_token_id")
        if expected is not None and stored != expected and not (name == "padding" and stored is None):
            yield f"its {name} token is {stored}, where the trained one is {expected} ({tokenizer.convert_ids_to_tokens(expected)})"
    ends = {metadata.get(f"{KEY}{name}_token_id") for name in ("eos", "eot", "eom")}
    missing = [stop for stop in trained.stops if stop not in ends and tokenizer.convert_ids_to_tokens(stop) not in ENDS]
    if missing:
        yield f"llama.cpp would not end an answer at {tokenizer.convert_ids_to_tokens(missing[0])} ({missing[0]}), where the training does"
    eos = metadata.get(f"{KEY}eos_token_id")
    if eos is not None and trained.stops and eos not in trained.stops:
        yield f"llama.cpp would end an answer at token {eos}, and the training ends it at {', '.join(map(str, trained.stops))}"
    if metadata.get(f"{KEY}add_bos_token") != trained.begins:
        yield f"llama.cpp would {'not ' * trained.begins}add a token before each text"


def _compare_template(trained: TrainedTokenizer, metadata: Mapping[str, Any]) -> Iterator[str]:
    template = trained.tokenizer.chat_template
    expected = template.get("default") if isinstance(template, dict) else template
    if metadata.get(TEMPLATE) != expected:
        yield "its chat template differs from the trained one" if expected else "it has a chat template, and the trained tokenizer has none"
