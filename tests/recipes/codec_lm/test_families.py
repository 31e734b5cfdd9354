"""Tests of `overtone.recipes.codec_lm.families`: the tokens of a row are those of its authors, and the row follows from the base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.codec_lm import families
from overtone.recipes.codec_lm.families import FAMILIES, ORPHEUS, VYVOTTS, choose_family
from overtone.recipes.codec_lm.model.sequence_layout import SpeechTextProcessor, read_row
from overtone.recipes.codec_lm.recipe import RECIPE
from overtone.recipes.codec_lm.speech_registration import SPEECH
from tests.recipes.codec_lm import tiny_models


def test_the_tokens_of_orpheus_have_its_authors_ids(released: SpeechTextProcessor) -> None:
    """The numbers stand in `engine_class.py` (prompt) and `main.py` of the streaming example (128258), of canopyai/Orpheus-TTS; 128262 and
    the order of training in the notebook to which its README refers."""
    ids = released.ids
    assert (ids.before_text, ids.after_text) == ((128259,), (128009, 128260, 128261, 128257))
    assert (ids.end_of_speech, ids.after_speech) == (128258, (128262,))
    assert (ids.codes.start, ids.codes.stop) == (128266, 128266 + 7 * 4096)


def test_the_authors_decoder_reads_each_token_as_its_code(released: SpeechTextProcessor) -> None:
    """`decoder.py` there: the number in a token's name, minus 10, minus 4096 for each place in the frame."""
    for slot in range(7):
        for code in (0, 1, 4095):
            (name,) = released.tokenizer.convert_ids_to_tokens([released.ids.first_code + 4096 * slot + code])
            assert int(name.removeprefix("<custom_token_").removesuffix(">")) - 10 - 4096 * slot == code


def test_a_row_of_vyvotts_is_written_token_for_token_as_by_its_authors(released_vyvotts: SpeechTextProcessor) -> None:
    """Ids by `vyvotts/configs/inference/qwen3.yaml` of Vyvo-Labs/VyvoTTS, order by `create_input_ids` of `vyvotts/audio_tokenizer.py`,
    codes by `SNACCodec.encode` of `vyvotts/codec.py`: level 1, then of level 2 and twice of level 3, and again."""
    frame = [100, 200, 201, 300, 301, 302, 303]
    sample = read_row({"text": "Hi", "speaker": "Ann", "audio_codes": [frame]}, released_vyvotts)
    text = released_vyvotts.tokenizer("ann: Hi")["input_ids"]
    assert len(text) == 7, "no token before the text"
    places = zip((100, 200, 300, 301, 201, 302, 303), range(7), strict=True)
    speech = [151679 + 4096 * slot + code for code, slot in places]
    assert sample["ids"].tolist() == [151672, *text, 151645, 151673, 151674, 151670, *speech, 151671, 151675]
    assert released_vyvotts.ids.codes.stop == 151679 + 7 * 4096


def test_every_row_of_the_table_names_each_codebook_once() -> None:
    assert FAMILIES[0] is ORPHEUS and len({family.name.lower() for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert sorted(family.slots) == list(range(family.code_format.codebooks)) and family.models
    assert ORPHEUS.frame_rate == pytest.approx(11.71875) and ORPHEUS.code_format.codebook_size == 4096


def test_the_family_follows_from_the_tokenizer(
    released: SpeechTextProcessor, released_vyvotts: SpeechTextProcessor, tmp_path: Path
) -> None:
    (tmp_path / "voices.json").write_text('{"speakers": []}')
    for processor, family in ((released, ORPHEUS), (released_vyvotts, VYVOTTS)):
        assert choose_family(tmp_path, processor.tokenizer.get_vocab, None) is family


def test_a_base_of_each_row_is_planned_and_spoken_with_as_that_row(tmp_path: Path) -> None:
    for family, tokens in zip(FAMILIES, (tiny_models.RELEASED_SPECIAL, tiny_models.QWEN_SPECIAL), strict=True):
        base = tmp_path / family.name / "base"
        tokenizer = tiny_models.make_tokenizer(tokens, 300)
        tiny_models.write_tokenizer(base, tokenizer)
        tiny_models.write_config(base, tokenizer.get_vocab_size())
        config = tiny_models.configure(tmp_path / family.name)
        assert RECIPE.sketch is not None
        assert RECIPE.sketch(config).processor().family is family
        assert SPEECH.inspect(base).family is family  # type: ignore[attr-defined]


def test_the_option_is_stronger_than_tokenizer_and_export(released: SpeechTextProcessor, tmp_path: Path) -> None:
    assert choose_family(tmp_path, released.tokenizer.get_vocab, "vyvotts") is VYVOTTS
    (tmp_path / "voices.json").write_text(json.dumps({"family": {**ORPHEUS.model_dump(), "codebook_size": 8}}))
    assert choose_family(tmp_path, dict, "VyvoTTS") is VYVOTTS
    assert choose_family(tmp_path, dict, "ORPHEUS").codebook_size == 8, "an export of this family says more about it than the table"
    with pytest.raises(UserError, match=r"options.family 'Oute' is not known; give one of: Orpheus, VyvoTTS"):
        choose_family(tmp_path, dict, "Oute")


def test_an_export_says_its_own_family_and_its_tokenizer_is_not_needed(tmp_path: Path) -> None:
    (tmp_path / "voices.json").write_text(json.dumps({"family": {**ORPHEUS.model_dump(), "name": "Mine", "codebook_size": 8}}))
    assert choose_family(tmp_path, pytest.fail, None).codebook_size == 8  # type: ignore[arg-type]


def test_a_tokenizer_of_no_row_or_of_several_is_refused(
    released: SpeechTextProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = {"<|eot_id|>": 0, "<custom_token_3>": 1}
    expected = (
        r"lacks tokens of every supported model \(of Orpheus, 28,677, the first <custom_token_4>; of VyvoTTS, 28,678, the first "
        r"<\|im_end\|>\).*use canopylabs/orpheus-3b-0.1-pretrained or .* or Vyvo/VyvoTTS-Qwen3-0.6B-PT, or a model trained from one"
    )
    with pytest.raises(UserError, match=expected):
        choose_family(tmp_path, lambda: vocabulary, None)
    similar = ORPHEUS.model_copy(update={"name": "Similar", "voice_prefix": "[{speaker}] "})
    monkeypatch.setattr(families, "FAMILIES", (*FAMILIES, similar))
    with pytest.raises(UserError, match="has all tokens of Orpheus and Similar; say which it is with --options.family"):
        choose_family(tmp_path, released.tokenizer.get_vocab, None)
    assert choose_family(tmp_path, released.tokenizer.get_vocab, "similar") is similar


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": [0, 0, 1]}, "family.slots .* must name each codebook once"),
        ({"slots": []}, "family.slots .* must name each codebook once"),
        ({"codebook_size": 0}, "family.codebook_size: Input should be greater"),
        ({"before_text": "a"}, "family.before_text: Input should be a valid list"),
    ],
)
def test_an_invalid_family_is_refused_by_key(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "voices.json").write_text(json.dumps({"family": {**ORPHEUS.model_dump(), **change}}))
    with pytest.raises(UserError, match=message):
        choose_family(tmp_path, dict, None)
