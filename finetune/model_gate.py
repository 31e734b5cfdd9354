"""The gate that every folder of a model passes before a library reads it: no code comes from a model.

transformers runs Python files of a folder when a JSON file in it asks for that, loads other models that a nested config names, downloads
kernels, and unpickles weights. `admit` gives it a clean copy of the folder instead: safetensors and tokenizer files as links, and JSON
files without the keys that lead to code. The type of the model is checked before any library sees the folder. The only pickles that are
read are the weights of Whisper and of speaker models, by `load_pickled_weights`, which builds tensors and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune import files, strict_json
from finetune.errors import UserError, printable
from finetune.hub_download import commit_of

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SETTINGS = frozenset(
    {"generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.json", "preprocessor_config.json"}
    | {"processor_config.json", CONFIG}
)
"""JSON files that are read as settings: copied without what leads to code. Exactly these: transformers would also follow
`audio_tokenizer_config.json`, `adapter_config.json` and versions of config.json to other folders."""
DATA = re.compile(r".+\.(safetensors|model|txt|jinja|tiktoken)|tokenizer\.json|vocab\.json|added_tokens\.json|tekken\.json")
"""Files that are data and nothing else (in JSON that lists tokens, no key has a meaning to transformers): linked as they are."""
DOCUMENTS = re.compile(r"README\.md|(LICENSE|NOTICE|USE_POLICY)[\w.-]*")
"""What an export passes on besides."""
TEMPLATES = "additional_chat_templates"
CODE_KEYS = frozenset({"trust_remote_code", "auto_map", "auto_class", "custom_pipelines", "custom_generate"})
"""Keys by which transformers finds Python files to run, at any depth (CVE-2026-5241: `trust_remote_code` in a nested config)."""
KERNEL_KEYS = re.compile(r"_?(attn|experts|kernels?)_implementation(_internal)?")
"""Their value may be a repository of the hub, whose kernels are run (CVE-2026-4372)."""
PLAIN_KERNELS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
"""Values of those that ordinary configs hold; dropped without a word, since each reader chooses anew."""
REDIRECTING_KEYS = frozenset(
    {"configuration_files", "fast_tokenizer_files", "transformers_weights", "attribute_map", "sub_configs", "base_config_key"}
    | {"audio_tokenizer", "audio_tokenizer_class", "audio_tokenizer_name_or_path", "get_text_config"}
    | {"backbone", "backbone_config", "backbone_kwargs", "use_pretrained_backbone", "use_timm_backbone"}
)
"""Keys by which transformers reads other files than those that were checked, loads other models, or gives a key another name."""
NAMES_OF_OTHERS = frozenset({"_name_or_path", "name_or_path"})
"""In a nested config, the model that is loaded for it."""
CLASS_KEYS = frozenset({"tokenizer_class", "processor_class", "feature_extractor_type", "image_processor_type", "video_processor_type"})
"""Their value is looked up among all names of transformers."""
CLASS_NAME = re.compile(r"(?!Auto|Rag)\w+(Tokenizer|TokenizerFast|Backend|FeatureExtractor|Processor|ProcessorFast)")
"""What may stand there: Auto and Rag classes would open other folders."""
VOCABULARY_KEYS = re.compile(r"(vocab|merges|tokenizer|spm|sentencepiece|bpe|normalizer)\w*_file")
"""Their value may be a file anywhere on the disk; the files of the folder are found by their own names."""
OPENS_OTHERS = frozenset({"edgetam_vision_model", "lightglue", "xcodec"})
"""Types whose config opens another model's by itself (a test compares this with the installed transformers)."""


def no_other(_: str, __: str) -> bool:
    return False


@dataclass(frozen=True)
class Kind:
    """Which folders a reader accepts."""

    name: str
    """For messages: "a causal language model of transformers"."""
    types: Collection[str]
    """Accepted values of `model_type` in config.json."""
    nested: Callable[[str, str], bool] = no_other
    """(type of the model, another type) → whether a config inside may have that type, besides `types`."""
    parts: Mapping[str, Kind] = field(default_factory=dict)
    """Subfolders that hold models of their own; no other subfolder is seen."""


@contextlib.contextmanager
def admit(folder: Path, kind: Kind) -> Iterator[Path]:
    """A clean copy of a model's folder, for as long as the context is open; weights are links, so it takes no room.

    Call the library's `from_pretrained` on it, with `trust_remote_code=False` and, for weights, `use_safetensors=True`. What was dropped
    goes to stderr. Raises `UserError` for a type of model that `kind` does not accept, and for files that cannot be what they claim.
    """
    temporary = files.fresh_folder(Path(tempfile.gettempdir()), "overtone-model", 0o700)
    try:
        _copy_clean(folder, kind, temporary)
        with no_remote_code():
            yield temporary
    finally:
        files.discard(temporary)


def check_config(folder: Path, kind: Kind) -> dict[str, Any]:
    """The clean content of config.json. Raises `UserError` if it is missing, no JSON object, or of a type that `kind` does not accept."""
    path = folder / CONFIG
    config, dropped = cleaned(path)
    found = config.get("model_type")
    if not isinstance(found, str) or found not in kind.types:
        own_code = "; the folder brings its own code for it, which is never run" if dropped else ""
        raise UserError(
            f"{path}: model_type {_printable(repr(found))} is not {kind.name}{own_code}; give a folder or a name of one that is"
        )
    for inner in _types_in(config):
        if not isinstance(inner, str) or inner in OPENS_OTHERS or not (inner in kind.types or kind.nested(found, inner)):
            raise UserError(
                f"{path}: holds a config of model_type {_printable(repr(inner))}, which is no part of {kind.name}, and is refused"
            )
    report(path, dropped)
    return config


_watch = threading.RLock()
_open_contexts = 0
_library_loader: Any = None


@contextlib.contextmanager
def no_remote_code() -> Iterator[None]:
    """While open, transformers' own loader of Python files raises: what a key not known here may lead to ends there."""
    global _open_contexts, _library_loader
    from transformers import dynamic_module_utils

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("code that comes with a model is never run")

    with _watch:
        if not _open_contexts:
            _library_loader, dynamic_module_utils.get_class_in_module = dynamic_module_utils.get_class_in_module, refuse
        _open_contexts += 1
    try:
        yield
    finally:
        with _watch:
            _open_contexts -= 1
            if not _open_contexts:
                dynamic_module_utils.get_class_in_module = _library_loader


def cleaned(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Content of a JSON file without the keys that lead to code, and what was dropped (`key.key: value`). Raises `UserError`."""
    document, dropped = read_object(path), list[str]()
    return _without_code(document, path, "", dropped), dropped


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model; NaN and infinity are allowed, since published configs hold them. Raises `UserError`."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: no model there ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); fetch the model again") from error
    if strict_json.is_deep(found):
        raise UserError(f"{path} is {strict_json.TOO_DEEP}, so it cannot be the settings of a model; fetch the model again")
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object but a {type(found).__name__}; fetch the model again")
    return found


def report(path: Path, dropped: list[str]) -> None:
    """One line on stderr for what was dropped of a file; once in a process, and by one process of a machine."""
    if dropped and os.environ.get("LOCAL_RANK", "0") == "0":
        _report_once(str(path), ", ".join(dropped))


@functools.cache
def _report_once(path: str, dropped: str) -> None:
    never = "code that comes with a model is never run, nor is another folder opened for it"
    print(f"warning: {path}: ignored {dropped}; {never}", file=sys.stderr, flush=True)


def _without_code(value: Any, path: Path, at: str, dropped: list[str]) -> Any:
    if isinstance(value, list):
        return [_without_code(each, path, f"{at}[{number}]", dropped) for number, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, child in value.items():
        place = f"{at}.{key}" if at else key
        if not _leads_to_code(key, child, nested=bool(at)):
            kept[key] = _without_code(child, path, place, dropped)
        elif child not in (None, "", False, *PLAIN_KERNELS):
            dropped.append(f"{_printable(place)}: {_short(child)}")
    return kept


def _leads_to_code(key: str, value: Any, nested: bool) -> bool:
    if key in CODE_KEYS or key in REDIRECTING_KEYS or KERNEL_KEYS.fullmatch(key) or (nested and key in NAMES_OF_OTHERS):
        return True
    if key in CLASS_KEYS:
        return value is not None and not (isinstance(value, str) and CLASS_NAME.fullmatch(value))
    return not nested and VOCABULARY_KEYS.fullmatch(key) is not None


def _short(value: Any) -> str:
    return _printable(json.dumps(value, ensure_ascii=True))


def _printable(text: str) -> str:
    """For a message: short, and without what a terminal obeys."""
    plain = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return plain if len(plain) <= 60 else plain[:57] + "..."


def _types_in(value: Any) -> Iterator[Any]:
    """Every `model_type` at any depth."""
    if isinstance(value, list):
        for each in value:
            yield from _types_in(each)
    elif isinstance(value, dict):
        if value.get("model_type") not in (None, ""):
            yield value["model_type"]
        for each in value.values():
            yield from _types_in(each)


def _copy_clean(folder: Path, kind: Kind, target: Path) -> None:
    config = check_config(folder, kind)
    files.write_in_place(target / CONFIG, _json(config))  # the very document that was checked
    for path in sorted(folder.iterdir()):
        if path.name != CONFIG and path.is_file():
            _admit_file(path, target / path.name)
    for name, part in kind.parts.items():
        if (folder / name / CONFIG).is_file():
            _copy_clean(folder / name, part, files.make_folder(target / name))
    for path in sorted((folder / TEMPLATES).glob("*.jinja")):
        files.make_folder(target / TEMPLATES)
        _admit_file(path, target / TEMPLATES / path.name)


def _admit_file(path: Path, target: Path) -> None:
    if path.name == INDEX:
        files.write_in_place(target, _json({"metadata": {}, "weight_map": checked_index(path)}))
    elif path.name in SETTINGS:
        try:
            document, dropped = cleaned(path)
        except UserError as error:  # what was never valid is not missed by a library either
            report(path, [str(error)])
            return
        report(path, dropped)
        files.write_in_place(target, _json(document))
    elif DATA.fullmatch(path.name):
        files.point_at(path.resolve(), target)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()  # with the infinities of published configs (mamba2)


def checked_index(path: Path) -> dict[str, str]:
    """Tensor name → file, of an index of weights. Raises `UserError` if it names anything but safetensors files beside it."""
    named = read_object(path).get("weight_map")
    for value in named.values() if isinstance(named, dict) else [named]:
        if not (isinstance(value, str) and value.endswith(".safetensors") and Path(value).name == value):
            raise UserError(f"{path}: weight_map names {_short(value)}, which is no safetensors file in that folder; fetch the model again")
    return dict(named or {})


def copy_for_export(path: Path, base: Path, target: Path) -> None:
    """Copy a file of a base into an export: settings without what leads to code, and data. Code and pickles stay behind.

    Raises `UserError` for a link that leads out of the base, whose target would be published with the export.
    """
    if path.name not in SETTINGS and not DATA.fullmatch(path.name) and not DOCUMENTS.fullmatch(path.name):
        report(path, ["the file, which is no data of a model"])
        return
    homes = [base.resolve(), *([base.parent.parent / "blobs"] if commit_of(base) else [])]  # the hub's cache links to its blobs
    if not any(path.resolve().is_relative_to(home) for home in homes):
        raise UserError(f"{path} is a link to {path.resolve()}, outside of the base, and would be exported; put the file itself there")
    if path.name in SETTINGS:
        document, dropped = cleaned(path)
        if dropped:
            report(path, dropped)
            files.make_folder(target.parent)
            files.write_in_place(target, json.dumps(document, indent=2, ensure_ascii=False).encode())
            return
    files.copy_into(path, target)


def require_safetensors(folder: Path, option: str) -> None:
    """Raises `UserError` for a folder whose weights are in another format, with the way to convert them."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = next((path for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in sorted(folder.glob(pattern))), None)
    if pickled is None:
        raise UserError(f"{option} {folder}: no *.safetensors weights in there; fetch the model again")
    raise UserError(
        f"{option} {folder}: its weights are pickles ({pickled.name}), which can run code when they are read, and are not read here. "
        f"{CONVERTING.format(folder=folder, pickled=pickled.name)}"
    )


CONVERTING = (
    "Convert them: python -c \"import torch; from safetensors.torch import save_file; w = torch.load('{pickled}', weights_only=True); "
    "save_file({{k: v.clone().contiguous() for k, v in w.items()}}, 'model.safetensors', {{'format': 'pt'}})\", started in {folder}"
)


def load_pickled_weights(path: Path) -> dict[str, Any]:
    """Content of a `.pt` or `.bin` file, on the CPU: tensors, numbers, text, lists and dictionaries; anything else is refused unread.

    The one place where a pickle is read, by torch's unpickler for weights, which calls nothing that the file names. Raises `UserError`.
    """
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # a foreign, damaged or hostile file fails in many ways
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} holds no plain weights ({first}); code that comes with a model is never run") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no weights by name but a {type(found).__name__}")
    return found
