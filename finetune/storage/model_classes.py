"""The classes that the settings of a model may name: those that transformers itself assigns to the accepted types of models.

Any class can be named there, and some open files that their settings name. The names differ between versions of transformers: version 5 has
one class for most tokenizers, and still accepts the names that folders have from before. transformers is imported inside of functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

COMMON_TOKENIZERS = frozenset(
    {"PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", "PythonBackend", "SentencePieceBackend"}
    | {"MistralCommonTokenizer", "MistralCommonBackend"}
)
"""Classes that are allowed for models of any type, because they read only files of the folder with fixed names."""
EARLIER_TOKENIZERS = frozenset(
    {"BartTokenizer", "BloomTokenizer", "CodeGenTokenizer", "CodeLlamaTokenizer", "ElectraTokenizer", "LlamaTokenizer"}
    | {"Speech2Text2Tokenizer", "TransfoXLTokenizer"}
)
"""Tokenizers of causal language models in transformers 4 that version 5 assigns to none (a test compares this with the installed 4)."""
FAST, PIL = "Fast", "Pil"
"""Ends of the names of variants: of both kinds of tokenizers, and of image processors in version 5."""


def list_causal_tokenizers(types: Collection[str]) -> frozenset[str]:
    """Return the tokenizers of these types of causal language models."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    return COMMON_TOKENIZERS | _with_variants(_look_up(TOKENIZER_MAPPING_NAMES, types) | EARLIER_TOKENIZERS)


def list_feature_extractors(types: Collection[str]) -> frozenset[str]:
    """Return the feature extractors of these types of models of sound."""
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES

    return frozenset(_look_up(FEATURE_EXTRACTOR_MAPPING_NAMES, types))


def list_image_processors(types: Collection[str]) -> frozenset[str]:
    """Return the image processors of these types of models."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    return _with_variants(_look_up(IMAGE_PROCESSOR_MAPPING_NAMES, types))


def is_known_tokenizer(name: str) -> bool:
    """Return whether transformers has a class of this name. It refuses others, or reads tokenizer.json without them (version 5)."""
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    variants = _with_variants({name})
    return bool(variants & {*_names_in([*TOKENIZER_MAPPING_NAMES.values()])}) or any(hasattr(transformers, each) for each in variants)


def _look_up(mapping: Mapping[str, object], types: Collection[str]) -> set[str]:
    return {*_names_in([mapping.get(kind) for kind in types])}


def _names_in(entry: object) -> Iterator[str]:
    """An entry is a name, None, or a tuple or dictionary of them, depending on the version."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict | tuple | list):
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _names_in(inner)


def _with_variants(names: Collection[str]) -> frozenset[str]:
    plain = {name.removesuffix(FAST).removesuffix(PIL) for name in names}
    return frozenset(name + end for name in plain for end in ("", FAST, PIL))
