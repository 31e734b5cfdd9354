"""One row of data as the sequence that the talker reads, identical to the sequence in non-streaming generation.

With n text tokens, T frames and a codec prefix of k ids (3 without a language, 4 with one):

    position            text channel     codec channel
    0 … 2               the role         nothing
    3 … 3+k-1           tts_pad          the prefix
    3+k                 tts_pad          the speaker's vector
    4+k                 tts_bos          codec_pad
    5+k … 5+k+n-1       the text         codec_pad
    5+k+n               tts_eos          codec_pad
    6+k+n               tts_pad          codec_bos
    7+k+n … 7+k+n+T-1   tts_pad          the frames
    7+k+n+T             tts_pad          codec_eos

The two channels are added. Source: `Qwen3TTSForConditionalGeneration.generate` of qwen-tts 0.1.1, which builds the same prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from overtone.data_prep import manifest
from overtone.data_prep.audio_codecs.qwen_tts_import import VOICE_MODEL
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Batch, Row, Sample
from overtone.finetune.storage.model_security import admit
from overtone.finetune.storage.strict_json import first_line
from overtone.recipes.speech.dataset_row_checks import check_codes, check_is_speech, check_text, find_speaker_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORE = -100
ROLE = 3
"""Number of tokens of `<|im_start|>assistant\\n`, before the text."""
TAIL = 5
"""Number of tokens of `<|im_end|>\\n<|im_start|>assistant\\n`, after the text; the talker does not see them."""


@dataclass(frozen=True)
class TokenIds:
    """All ids that the layout writes, from the model's config."""

    tts_pad: int
    tts_bos: int
    tts_eos: int
    codec_pad: int
    codec_bos: int
    codec_eos: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int
    languages: dict[str, int]
    """Language name → id in the codec prefix. Generation accepts these names."""
    reserved_text: frozenset[int]
    """Text ids that delimit the prompt; they must not occur in the text."""
    codebooks: int
    codebook_size: int
    positions: int
    """Longest sequence that the talker's position table covers."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TokenIds:
        """From the content of a Qwen3-TTS `config.json`. Raises `UserError` if a number is missing there."""
        try:
            return cls._parse(config)
        except (AttributeError, KeyError, TypeError) as error:
            missing = error if isinstance(error, KeyError) else "talker_config"
            raise UserError(f"config.json of the model has no valid {missing}; download the model again") from error

    @classmethod
    def _parse(cls, config: dict[str, Any]) -> TokenIds:
        talker = config["talker_config"]
        languages = {name.lower(): number for name, number in talker["codec_language_id"].items() if "dialect" not in name}
        text = [config[f"{name}_token_id"] for name in ("im_start", "im_end", "tts_pad", "tts_bos", "tts_eos")]
        found = cls(
            tts_pad=config["tts_pad_token_id"],
            tts_bos=config["tts_bos_token_id"],
            tts_eos=config["tts_eos_token_id"],
            codec_pad=talker["codec_pad_id"],
            codec_bos=talker["codec_bos_id"],
            codec_eos=talker["codec_eos_token_id"],
            think=talker["codec_think_id"],
            nothink=talker["codec_nothink_id"],
            think_bos=talker["codec_think_bos_id"],
            think_eos=talker["codec_think_eos_id"],
            languages=languages,
            reserved_text=frozenset(text),
            codebooks=talker["num_code_groups"],
            codebook_size=talker["code_predictor_config"]["vocab_size"],
            positions=talker["max_position_embeddings"],
        )
        numbers = {**vars(found), **languages}
        if wrong := next(
            (name for name, value in numbers.items() if name not in ("languages", "reserved_text") and type(value) is not int), None
        ):
            raise KeyError(wrong)
        return found


def load_tokenizer(model: Path) -> PreTrainedTokenizerBase:
    """The text tokenizer of a model's folder, as the stock package loads it. Raises `UserError`."""
    from transformers import AutoTokenizer  # slow to import; most users of this module load no tokenizer

    with admit(model, VOICE_MODEL) as clean:
        try:
            return AutoTokenizer.from_pretrained(clean, trust_remote_code=False, fix_mistral_regex=True)
        except Exception as error:  # tokenizers raises bare Exception
            raise UserError(f"{model}: the tokenizer cannot be loaded ({first_line(error)}); download the model again") from error


@dataclass(frozen=True)
class SpeechProcessor:
    """Turns a row into a sample."""

    tokenizer: PreTrainedTokenizerBase
    """The model's text tokenizer: `tokenizer(text)["input_ids"]` → list of ids."""
    ids: TokenIds
    speakers: dict[str, int]
    """Lower-case name → row of the speaker vectors."""
    default_speaker: str | None = None
    """Speaker of rows that name none."""
    use_language: bool = True
    """True if a row's language is put into the prefix."""


def read_row(row: Row, processor: SpeechProcessor) -> Sample:
    """Row with `text`, `speaker`, `audio_codes` and optionally `language` → the tensors of `lay_out_clip`. Raises `UserError` for a bad
    row."""
    ids = processor.ids
    check_is_speech(row, "voice_clone")
    language = find_language(row, ids) if processor.use_language else None
    text, codes = tokenize_text(row.get("text"), processor), check_codes(row.get("audio_codes"), ids.codebooks, ids.codebook_size)
    sample = lay_out_clip(text, codes, find_speaker_index(row, processor), None if language is None else ids.languages[language], ids)
    if (length := len(sample["text"])) > ids.positions:  # the model was not made for positions beyond its table
        raise UserError(
            f"{len(codes)} frames and {len(text) - ROLE} tokens of text take {length} positions, and the model has {ids.positions}; "
            "cut the clip and its text"
        )
    return sample


def lay_out_clip(text: list[int], codes: Tensor, speaker: int, language: int | None, ids: TokenIds) -> Sample:
    """Lay out one clip: `text` = 3 role tokens and n text tokens, `codes` = [T, codebooks] int64.

    Tensors over S = 8+k+n+T positions: `text` [S] ids; `codec` [S] ids, valid where `codec_mask` [S]; `speaker_mask` [S], true at the slot
    of the speaker's vector; `codes` [S, codebooks], valid where `frame_mask` [S]; `labels` [S], codebook 0 and end of speech; `valid` [S],
    all true until padded; and `speaker` [], an index into the speaker vectors.
    """
    prefix = [ids.nothink, ids.think_bos, ids.think_eos] if language is None else [ids.think, ids.think_bos, language, ids.think_eos]
    k, n, T = len(prefix), len(text) - ROLE, len(codes)
    slot, first_frame = ROLE + k, 7 + k + n
    length = first_frame + T + 1

    channel = [*text[:ROLE], *[ids.tts_pad] * (k + 1), ids.tts_bos, *text[ROLE:], ids.tts_eos, *[ids.tts_pad] * (T + 2)]
    codec = [*[0] * ROLE, *prefix, 0, *[ids.codec_pad] * (n + 2), ids.codec_bos, *[0] * T, ids.codec_eos]
    position = torch.arange(length)
    frame_mask = (position >= first_frame) & (position < first_frame + T)
    speaker_mask = position == slot
    frames = torch.zeros(length, ids.codebooks, dtype=torch.int64)
    frames[frame_mask] = codes
    labels = torch.full((length,), IGNORE)
    labels[frame_mask] = codes[:, 0]
    labels[-1] = ids.codec_eos
    return {
        "text": torch.tensor(channel),
        "codec": torch.tensor(codec),
        "codec_mask": (position >= ROLE) & ~speaker_mask & ~frame_mask,
        "speaker_mask": speaker_mask,
        "codes": frames,
        "frame_mask": frame_mask,
        "labels": labels,
        "valid": torch.ones(length, dtype=torch.bool),
        "speaker": torch.tensor(speaker),
    }


def make_dummy_sample(positions: int, ids: TokenIds) -> Sample:
    """A clip of `positions` positions (at least 13) for memory estimates: one word, and otherwise frames, which cost most."""
    overhead = 8 + 3 + 1  # `lay_out_clip` with a prefix of three ids and one text token
    return lay_out_clip([0] * (ROLE + 1), torch.zeros(positions - overhead, ids.codebooks, dtype=torch.int64), 0, None, ids)


def collate(samples: list[Sample]) -> Batch:
    """Pad on the right to [B, S]. Attention looks only to the left, so no real position sees padding.

    Two more tensors have flat positions b·S + s: `frame_rows` [N], those of the frames, and `target_rows` [M], those whose next label is a
    target. With a mask on the device, the host would have to wait for the number of selected positions.
    """
    fill = {"labels": IGNORE}
    tensors = {
        name: torch.stack([sample[name] for sample in samples])
        if name == "speaker"
        else pad_sequence([sample[name] for sample in samples], batch_first=True, padding_value=fill.get(name, 0))
        for name in samples[0]
    }
    has_target = functional.pad(tensors["labels"][:, 1:] != IGNORE, (0, 1))
    rows = {"frame_rows": flat_positions(tensors["frame_mask"]), "target_rows": flat_positions(has_target)}
    first = int((tensors["labels"] != IGNORE).sum())
    others = len(rows["frame_rows"]) * (tensors["codes"].shape[-1] - 1)
    return Batch({**tensors, **rows}, targets={"main": first, "sub": others, "main_accuracy": first, "sub_accuracy": others})


def flat_positions(mask: Tensor) -> Tensor:
    """Flat positions b·S + s, in order, at which a mask [B, S] is true."""
    return mask.flatten().nonzero().squeeze(1)


def format_prompt(text: str) -> str:
    """The chat turn in which the model was trained to speak `text`."""
    return f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"


def tokenize_text(text: JsonValue, processor: SpeechProcessor) -> list[int]:
    """Ids of the role and the text. Raises `UserError` for missing text, and for text with control tokens of the prompt."""
    tokens: list[int] = processor.tokenizer(format_prompt(check_text(text)))["input_ids"][:-TAIL]
    reserved = processor.ids.reserved_text.intersection(tokens[1:])
    if reserved:
        names = processor.tokenizer.convert_ids_to_tokens(sorted(reserved))
        raise UserError(f"text = {text!r} contains the control tokens {names}, which would end the prompt early; remove them")
    return tokens


def find_speaker_index(row: Row, processor: SpeechProcessor) -> int:
    """Index of the row's speaker in the speaker vectors. Raises `UserError` for a speaker who is not trained."""
    name = find_speaker_name(row, processor.default_speaker)
    if name not in processor.speakers:
        raise UserError(f"speaker {name!r} is not in the training data; it has {', '.join(processor.speakers)}")
    return processor.speakers[name]


def find_language(row: Row, ids: TokenIds) -> str | None:
    """The model's name of the row's language, or None for "auto". Raises `UserError` for an unknown one."""
    given = row.get("language")
    if given is None or given == "":
        return None
    name = str(given).strip().lower()
    name = manifest.LANGUAGES.get(name, name)
    if name == manifest.AUTO:
        return None
    if name not in ids.languages:
        raise UserError(f"language {given!r} is not known to this model; known: {', '.join(sorted(ids.languages))}, or {manifest.AUTO}")
    return name
