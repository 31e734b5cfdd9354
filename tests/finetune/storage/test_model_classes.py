import pytest
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
)
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from overtone.finetune.storage import model_classes

OF_VERSION_4 = (
    *("Bart", "Bert", "BigBird", "BioGpt", "BlenderbotSmall", "Blenderbot", "Bloom", "CTRL", "Camembert", "CodeGen", "CodeLlama", "Cohere"),
    *("CpmAnt", "Electra", "GPT2", "GPTNeoXJapanese", "GPTNeoX", "Gemma", "Llama", "MBart", "Mvp", "OpenAIGPT", "Pegasus", "ProphetNet"),
    *("Qwen2", "Reformer", "RemBert", "RoCBert", "RoFormer", "Roberta", "Speech2Text2", "T5", "TransfoXL", "Whisper", "XGLM", "XLMRoberta"),
    *("XLM", "XLNet"),
)
"""Tokenizers of causal language models in transformers 4.57.3."""


def names_in(entry: object) -> set[str]:
    """Of version 4 (slow, fast) or version 5 (name)."""
    return {entry} if isinstance(entry, str) else {name for name in entry or () if name}  # type: ignore[attr-defined]


def test_every_tokenizer_of_causal_language_models_is_accepted() -> None:
    accepted = model_classes.list_causal_tokenizers(frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
    installed = {name for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES for name in names_in(TOKENIZER_MAPPING_NAMES.get(kind))}
    assert len(installed) > 30
    assert installed - accepted == set()
    assert {f"{name}Tokenizer{end}" for name in OF_VERSION_4 for end in ("", "Fast")} - accepted == set()
    assert {"PreTrainedTokenizerFast", "TokenizersBackend", "MistralCommonTokenizer"} <= accepted


@pytest.mark.parametrize("name", ["LukeTokenizer", "BertJapaneseTokenizer", "RagTokenizer", "AutoTokenizer", "FSMTTokenizer"])
def test_other_tokenizers_are_not_accepted(name: str) -> None:
    assert name not in model_classes.list_causal_tokenizers(frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


def test_what_transformers_knows() -> None:
    assert model_classes.is_known_tokenizer("LukeTokenizer") and model_classes.is_known_tokenizer("LlamaTokenizerFast")
    assert not model_classes.is_known_tokenizer("MineTokenizer")


def test_processors_of_sound_and_images() -> None:
    assert model_classes.list_feature_extractors(frozenset(MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES)) == {"Wav2Vec2FeatureExtractor"}
    images = model_classes.list_image_processors(frozenset(MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES))
    assert {"ViTImageProcessor", "ViTImageProcessorFast", "ConvNextImageProcessor", "BitImageProcessorFast"} <= images
    assert "OneFormerImageProcessor" not in images, "it opens the file that class_info_file names, and a repository on the hub"
