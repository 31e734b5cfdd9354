import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from overtone.finetune.errors import UserError
from overtone.finetune.storage.path_settings import could_be_path, has_form_of_path, holds_text, is_file_key

TOKENIZER, CONFIG = "tokenizer_config.json", "config.json"
FAMILIES = Path(transformers.__file__).parent / "models"


@functools.cache
def parse_modules(pattern: str) -> list[ast.Module]:
    """Read as text, since many of these modules need a package that is not installed."""
    return [ast.parse(path.read_text()) for path in sorted(FAMILIES.glob(f"*/{pattern}"))]


def list_constructor_arguments(pattern: str) -> Iterator[tuple[str, Any]]:
    """(name, default if it is a constant, else None) of all arguments of constructors, and of all fields of dataclasses."""
    for module in parse_modules(pattern):
        for each in ast.walk(module):
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                named = [*each.args.args, *each.args.kwonlyargs]
                defaults = [None] * (len(each.args.args) - len(each.args.defaults)) + [*each.args.defaults, *each.args.kw_defaults]
                for argument, default in zip(named, defaults, strict=True):
                    if argument.arg != "self":
                        yield argument.arg, default.value if isinstance(default, ast.Constant) else None
            elif isinstance(each, ast.ClassDef):
                for field in each.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        yield field.target.id, field.value.value if isinstance(field.value, ast.Constant) else None


@functools.cache
def list_vocabulary_keys() -> set[str]:
    """The arguments for which transformers looks up files: the keys of every VOCAB_FILES_NAMES."""
    return {
        key.value
        for module in parse_modules("tokenization*.py")
        for each in ast.walk(module)
        if isinstance(each, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "VOCAB_FILES_NAMES" for name in each.targets)
        if isinstance(each.value, ast.Dict)
        for key in each.value.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


@pytest.mark.parametrize("value", ["/etc/passwd", "x", 0, True, None, ["a"], {"a": 1}])
def test_no_file_of_any_tokenizer_class_can_be_named(value: Any) -> None:
    found = list_vocabulary_keys()
    assert {"vocab_file", "emoji_file", "source_spm", "target_spm", "word_shape_file", "entity_vocab_file", "vocab"} <= found
    assert [key for key in sorted(found) if not could_be_path(TOKENIZER, key, value)] == [], "add the new key to FILE_KEYS"
    assert [key for key in sorted(found) if holds_text(TOKENIZER, key)] == []


def test_no_argument_of_any_tokenizer_class_can_be_a_path() -> None:
    """Also one that a later version of transformers adds: it is dropped unless its name is that of tokens or templates."""
    found = dict(list_constructor_arguments("tokenization*.py"))
    assert len(found) > 100 and "mecab_kwargs" in found
    for key in found:
        for value in ("/etc/passwd", "../x", {"model_file": "/etc/passwd"}, [["/etc/passwd"]]):
            assert could_be_path(TOKENIZER, key, value) or holds_text(TOKENIZER, key), key
    texts = {key for key in found if holds_text(TOKENIZER, key)}
    assert {"bos_token", "mask_token_sent", "additional_special_tokens"} <= texts
    assert not [key for key in texts if any(part in key for part in ("file", "path", "dir", "spm", "vocab", "model", "kwargs"))]


def test_the_defaults_of_all_tokenizer_classes_are_kept() -> None:
    texts = [(key, value) for key, value in list_constructor_arguments("tokenization*.py") if isinstance(value, str)]
    assert len(texts) > 300
    lost = {key for key, value in texts if could_be_path(TOKENIZER, key, value) and not holds_text(TOKENIZER, key)}
    assert lost <= {"mecab_dic", "sudachi_split_mode"}  # of the dictionaries inside Japanese tokenizers, which no recipe loads


def test_the_defaults_of_all_configs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [(key, value) for key, value in list_constructor_arguments("configuration*.py") if isinstance(value, str)]
    assert len(texts) > 300
    lost = [pair for pair in texts if could_be_path(CONFIG, *pair) and not holds_text(CONFIG, pair[0])]
    assert [pair for pair in lost if pair[0] not in ("doc_sep", "title_sep")] == []  # RAG's, which no recipe loads


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("chat_template", "{{ '/etc/passwd' }}"),
        ("chat_template", [{"name": "default", "template": "a/b"}]),
        ("pad_token", {"content": "/", "special": True}),
        ("extra_special_tokens", ["/", ".", "etc", "</s>"]),
        ("added_tokens_decoder", {"0": {"content": "/etc/passwd"}}),
        ("image_token", "/dev/null"),
    ],
)
def test_tokens_and_templates_may_look_like_paths(key: str, value: Any) -> None:
    assert holds_text(TOKENIZER, key)
    assert holds_text("special_tokens_map.json", key)


@pytest.mark.parametrize(
    ("key", "value", "dropped"),
    [
        ("padding_side", "left", False),
        ("padding_side", "/etc", True),
        ("model_input_names", ["input_ids", "attention_mask"], False),
        ("src_lang", "haitian creole", False),
        ("do_lower_case", True, False),
        ("model_max_length", 1e30, False),
        ("sp_model_kwargs", {"enable_sampling": True, "alpha": 0.1}, False),
        ("sp_model_kwargs", {"model_file": "x"}, True),
        ("init_inputs", [0], True),
        ("gguf_file", "model.gguf", True),
        ("unknown_to_us", "word", True),
        ("unknown_to_us", 3, False),
    ],
)
def test_other_keys_of_a_tokenizer(key: str, value: Any, dropped: bool) -> None:
    assert could_be_path(TOKENIZER, key, value) is dropped
    assert not holds_text(TOKENIZER, key)


def test_a_file_among_the_names_of_tokens_is_one() -> None:
    """transformers sets an attribute of the tokenizer for each key of `extra_special_tokens`."""
    assert is_file_key(TOKENIZER, "vocab_file") and is_file_key(TOKENIZER, "special_tokens_map_file")
    assert not is_file_key(CONFIG, "vocab_file") and not is_file_key(TOKENIZER, "image_token")


@pytest.mark.parametrize(
    "text", ["/etc/passwd", "a/b", "../x", "./x", ".", "..", "~/x", "~root", "file:///x", "local-dir:x", "hf-hub:x", "s3:x", "a\0b", "</s>"]
)
def test_forms_of_paths(text: str) -> None:
    assert has_form_of_path(text)
    assert could_be_path(CONFIG, "anything", text) and could_be_path(CONFIG, "anything", ["a", ["b", text]])
    assert could_be_path("preprocessor_config.json", "hidden_act", text), "a key of words holds no path"


@pytest.mark.parametrize("text", ["gelu", "torch.float32", "4.57.3", "<|en|>", "gated-gelu", r"re:.*mlp\.down", "two words", "LABEL_0", ""])
def test_words_are_kept(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not has_form_of_path(text) and not could_be_path(CONFIG, "anything", text)


@pytest.mark.parametrize(
    ("name", "dropped"), [("owner/model", False), ("model", False), ("here/model", True), ("here", True), ("/x", True)]
)
def test_the_name_of_a_model_itself(name: str, dropped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    assert could_be_path(CONFIG, "_name_or_path", name) is dropped


def test_a_word_that_is_a_file_here_is_refused_unless_its_key_is_one_of_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama").mkdir()
    (tmp_path / "secret.txt").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    for key in ("model_type", "rope_type", "hidden_act", "architectures", "torch_dtype", "layer_types"):
        assert not could_be_path(CONFIG, key, "llama")
    for word in ("llama", "secret.txt", "link"):
        with pytest.raises(UserError, match=rf"config\.json: glossary: '{word}' may be .* start the command in another folder"):
            could_be_path(CONFIG, "glossary", word)


def test_texts_of_a_config_are_not_paths() -> None:
    assert all(holds_text(CONFIG, key) for key in ("id2label", "stop_strings", "task_specific_params", "eos_token"))
    assert not holds_text(CONFIG, "backbone") and not holds_text(CONFIG, "vocab_file")
