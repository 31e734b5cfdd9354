"""Safe model loading: a clean copy of every model folder for transformers, so that no code from a model is ever executed.

transformers runs Python files of a model folder if a JSON file in it says so, loads other models that a nested config names, downloads
kernels, opens any file that a tokenizer's settings name, and unpickles weights. `admit` makes a clean copy of the folder: weights as links,
tokenizer files as copies, and JSON files without the keys that lead to code or to other files. The model type and the classes are checked
before any library reads the folder, and the library reads only the copy, so nothing changes between check and use. The only pickles that
are read are weights that are published in no other format, by `load_pickled_weights`, which creates only tensors and plain values.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import threading
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models, files, input_files, path_settings, strict_json
from overtone.finetune.storage.base_quantization import check_plain, drop_declarations, find_form
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_classes import is_known_tokenizer
from overtone.finetune.storage.model_config_limits import find_impossible_value
from overtone.finetune.storage.safetensors_opening import open_weights
from overtone.finetune.terminal import print_diagnostic, printable

if TYPE_CHECKING:
    from pydantic import JsonValue

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SETTINGS = frozenset(
    {"generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.json", "preprocessor_config.json"}
    | {"processor_config.json", CONFIG}
)
"""JSON files that are copied, without keys that lead to code. No others: transformers would follow `audio_tokenizer_config.json`,
`adapter_config.json` and versioned config files to other folders."""
WEIGHTS = ".safetensors"
DATA = re.compile(r".+\.(safetensors|model|txt|jinja|tiktoken)|tokenizer\.json|vocab\.json|added_tokens\.json|tekken\.json")
"""Pure data files, which are taken as they are (in JSON that lists tokens, transformers interprets no keys)."""
LARGEST = (
    (re.compile(r"config\.json"), 2**23, 500_000),  # with 21,000 labels it has 2 MB
    (re.compile(r".+\.index\.json"), 2**26, 500_000),  # with 91,000 tensors it has 9 MB
    (re.compile(r".+\.jinja"), 2**20, 2**20),  # long templates have 20 kB
    (re.compile(r".+_(config|map|template)\.json"), 2**24, 500_000),  # with 29,000 added tokens it has 5 MB
    (re.compile(r".+"), 2**26, 4_000_000),  # the tokenizer.json of Gemma has 35 MB, and 500,000 lists
)
"""Names of files that are read as a whole, their most bytes, and their most brackets, far above those of published models; the first name
that matches counts. An empty list takes three bytes in a file, and 60 in memory."""
DOCUMENTS = re.compile(r"README\.md|(LICENSE|NOTICE|USE_POLICY)[\w.-]*")
"""Documents that an export also copies."""
TEMPLATES = "additional_chat_templates"
LONGEST = "model_max_length"
"""Key of tokenizer_config.json for the most tokens of a text."""
CODE_KEYS = frozenset({"trust_remote_code", "auto_map", "auto_class", "custom_pipelines", "custom_generate"})
"""Keys that make transformers run Python files, at any depth (CVE-2026-5241: `trust_remote_code` in a nested config)."""
KERNEL_KEYS = re.compile(r"_?(attn|experts|kernels?)_implementation(_internal)?")
"""Keys whose value may be a hub repository with kernels, which would be executed (CVE-2026-4372)."""
PLAIN_KERNELS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
"""Harmless values of these keys. They are dropped without a warning, since the loading code chooses its own."""
REDIRECTING_KEYS = frozenset(
    {"configuration_files", "fast_tokenizer_files", "transformers_weights", "attribute_map", "sub_configs", "base_config_key"}
    | {"audio_tokenizer", "audio_tokenizer_class", "audio_tokenizer_name_or_path", "get_text_config"}
    | {"backbone", "backbone_config", "backbone_kwargs", "use_pretrained_backbone", "use_timm_backbone"}
)
"""Keys that make transformers read unchecked files, load other models, or rename config keys."""
CLASS_KEYS = frozenset({"tokenizer_class", "processor_class", "feature_extractor_type", "image_processor_type", "video_processor_type"})
"""Keys whose value is looked up among all names of transformers."""
CLASS_NAME = re.compile(r"(?!Auto|Rag)\w+(Tokenizer|TokenizerFast|Backend|FeatureExtractor|Processor|ProcessorFast)")
"""Allowed values of these keys. Auto and Rag classes would open other folders."""
OPENS_OTHERS = frozenset({"edgetam_vision_model", "lightglue", "xcodec"})
"""Model types whose config class opens another model's config (a test compares this with the installed transformers)."""


def accept_no_other(_: str, __: str) -> bool:
    return False


@dataclass(frozen=True)
class Kind:
    """The models that a loader accepts."""

    name: str
    """Description for messages, such as "a causal language model of transformers"."""
    types: Collection[str]
    """Accepted values of `model_type` in config.json."""
    nested: Callable[[str, str], bool] = accept_no_other
    """(type of the model, type of a nested config) → whether that type is accepted in addition to `types`."""
    classes: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Key of a settings file that names a class, such as `tokenizer_class` → the classes that it may name. A key that is not here is
    dropped, because no such class is loaded."""
    parts: Mapping[str, Kind] = field(default_factory=dict)
    """Subfolders that contain further models; all other subfolders are ignored."""


@contextlib.contextmanager
def admit(folder: Path, kind: Kind) -> Iterator[Path]:
    """A temporary clean copy of a model folder; weights are linked, not copied. All files of the tokenizer are copies.

    Call the library's `from_pretrained` on it, with `trust_remote_code=False` and, for weights, `use_safetensors=True`. Dropped keys are
    printed to stderr. Raises `UserError` for a model type that `kind` does not accept, for invalid files, and if the library creates more
    tensors than the weights justify.
    """
    with files.temporary_folder("overtone-model") as temporary:
        _copy_clean(folder, kind, temporary)
        with forbid_remote_code():  # imports torch
            from overtone.finetune.storage.construction_limits import limit_construction

            with limit_construction(folder):
                yield temporary


def check_config(folder: Path, kind: Kind) -> dict[str, Any]:
    """Return the clean content of config.json, without declarations of quantization. Raises `UserError` if it is missing, not a JSON
    object, of a type that `kind` does not accept, or declares a quantization that cannot be dequantized."""
    path = folder / CONFIG
    config, dropped = cleaned(path)
    found = config.get("model_type")
    if not isinstance(found, str) or found not in kind.types:
        own_code = "; the folder contains its own code for it, which is never run" if dropped else ""
        raise UserError(f"{path}: model_type {shorten(repr(found))} is not {kind.name}{own_code}; give the folder or name of another model")
    for inner in _find_model_types(config):
        if not isinstance(inner, str) or inner in OPENS_OTHERS or not (inner in kind.types or kind.nested(found, inner)):
            raise UserError(
                f"{path}: contains a config of model_type {shorten(repr(inner))}, which is not a part of {kind.name}, and is refused"
            )
    if (impossible := find_impossible_value(config)) is not None:
        raise UserError(f"{path}: {shorten(impossible, 200)}; download the model again, or give another one")
    find_form(config, folder)
    report(path, dropped)
    # Without them, a library would build layers of its own for the stored form; `stored_tensors` and `require_safetensors` read it.
    return drop_declarations(config)


_watch = threading.RLock()
_open_contexts = 0
_library_loader: Any = None


@contextlib.contextmanager
def forbid_remote_code() -> Iterator[None]:
    """While open, transformers' loader of Python files raises an error, in case of a key that this module does not know."""
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
    """Return the content of a JSON file without the keys that lead to code, and the dropped keys (`key.key: value`). Raises `UserError`."""
    document, dropped = read_object(path), list[str]()
    return _without_code(document, path, "", dropped), dropped


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model; NaN and infinity are allowed, since published configs hold them. Raises `UserError`,
    also for a file larger than in any real model, and for one that is not a regular file."""
    try:
        found = json.loads(read_limited(path))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no model there ({error.strerror})") from error
    except OSError as error:
        raise UserError(f"{path} cannot be used ({error.strerror or error}); download the model again") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); download the model again") from error
    if strict_json.is_deep(found):
        raise UserError(f"{path} is {strict_json.TOO_DEEP}, so it is not a valid model config; download the model again")
    if not isinstance(found, dict):
        raise UserError(f"{path} contains a {type(found).__name__} instead of a JSON object; download the model again")
    return found


def read_limited(path: Path) -> bytes:
    """Return the content of a file of a model that is parsed as a whole. Raises `OSError`, also for a file of a size that no model has, and
    for a pipe, a device or a socket."""
    most, brackets = next((most, brackets) for names, most, brackets in LARGEST if names.fullmatch(path.name))
    content = input_files.read_bytes(path, most)
    if path.suffix == ".json" and content.count(b"[") + content.count(b"{") > brackets:
        raise input_files.UnusableFileError(errno.EFBIG, f"it has more than {brackets:,} brackets, as no model has", str(path))
    return content


def report(path: Path, dropped: list[str]) -> None:
    """Print the dropped keys of a file to stderr, once per process, and only from local rank 0."""
    if dropped and os.environ.get("LOCAL_RANK", "0") == "0":
        _report_once(str(path), ", ".join(dropped))


@functools.cache
def _report_once(path: str, dropped: str) -> None:
    never = "code that comes with a model is never run, and nothing outside of its folder is opened for it"
    print_diagnostic(f"warning: {path}: ignored {dropped}; {never}")


def _without_code(value: Any, path: Path, at: str, dropped: list[str], is_text: bool = False) -> Any:
    """`is_text`: no library opens the strings in `value`."""
    if isinstance(value, list):
        return [_without_code(each, path, f"{at}[{number}]", dropped, is_text) for number, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, child in value.items():
        place = f"{at}.{key}" if at else key
        as_text = is_text or path_settings.holds_text(path.name, key)
        if not _leads_elsewhere(key, child, path, as_text, nested=bool(at)):
            kept[key] = _without_code(child, path, place, dropped, as_text)
        elif child not in (None, "", False, *PLAIN_KERNELS):
            dropped.append(f"{shorten(place)}: {_short(child)}")
    return kept


def _leads_elsewhere(key: str, value: JsonValue, path: Path, is_text: bool, nested: bool) -> bool:
    """Return whether a key makes a library run code, or open anything but the files of the clean copy."""
    if key in CODE_KEYS or key in REDIRECTING_KEYS or KERNEL_KEYS.fullmatch(key):
        return True
    if nested and key in path_settings.NAMES_OF_ITSELF:  # there it names another model to load
        return True
    if key in CLASS_KEYS:
        return value is not None and not (isinstance(value, str) and CLASS_NAME.fullmatch(value))
    if is_text:
        return path_settings.is_file_key(path.name, key)
    return path_settings.could_be_path(path.name, key, value)


def _short(value: JsonValue) -> str:
    return shorten(json.dumps(value, ensure_ascii=True))


def shorten(text: str, most: int = 60) -> str:
    """Return the text for a message: at most so many characters, and without terminal control characters."""
    plain = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def _find_model_types(value: JsonValue) -> Iterator[JsonValue]:
    """Every `model_type` at any depth."""
    if isinstance(value, list):
        for each in value:
            yield from _find_model_types(each)
    elif isinstance(value, dict):
        if value.get("model_type") not in (None, ""):
            yield value["model_type"]
        for each in value.values():
            yield from _find_model_types(each)


def _copy_clean(folder: Path, kind: Kind, target: Path) -> None:
    config = check_config(folder, kind)
    _check_classes(config, folder / CONFIG, kind)
    files.write_in_place(target / CONFIG, _json(config))  # the same document that was checked
    for path in sorted(folder.iterdir()):
        if path.name != CONFIG and not path.is_dir():
            _admit_file(path, target / path.name, kind)
    for name, part in kind.parts.items():
        if (folder / name / CONFIG).is_file():
            _copy_clean(folder / name, part, files.make_folder(target / name))
    for path in sorted((folder / TEMPLATES).glob("*.jinja")):
        files.make_folder(target / TEMPLATES)
        _admit_file(path, target / TEMPLATES / path.name, kind)


def _admit_file(path: Path, target: Path, kind: Kind) -> None:
    if path.name == INDEX:
        files.write_in_place(target, _json({"metadata": {}, "weight_map": checked_index(path)}))
    elif path.name in SETTINGS:
        _admit_settings(path, target, kind)
    elif DATA.fullmatch(path.name):
        try:
            if path.suffix == WEIGHTS:
                input_files.require_regular(path)
                files.link_symbolically(path.resolve(), target)
            else:
                files.write_in_place(target, read_limited(path))
        except OSError as error:
            raise UserError(f"{path} cannot be used ({error.strerror or error}); download the model again") from error


def _admit_settings(path: Path, target: Path, kind: Kind) -> None:
    try:
        document = read_object(path)
    except UserError as error:  # an invalid file is of no use to a library either
        report(path, [str(error)])
        return
    dropped = list[str]()
    document = _without_code(document, path, "", dropped)
    _check_classes(document, path, kind)
    if not isinstance(document.get(LONGEST), int | float | None):  # transformers compares it with the length of each text
        raise UserError(f"{path}: {LONGEST}: {_short(document[LONGEST])}, expected a number; download the model again")
    report(path, dropped)
    files.write_in_place(target, _json(document))


def _check_classes(document: Any, path: Path, kind: Kind, nested: bool = False) -> None:
    """Remove the names of classes that are not loaded for this kind of model, in place. Raises `UserError` for one that would be loaded and
    that no such model has: any other class of transformers may open other files."""
    for key, value in list(document.items()):
        if isinstance(value, dict):
            _check_classes(value, path, kind, nested=True)
        elif key in CLASS_KEYS and value is not None and value not in kind.classes.get(key, ()):
            if not nested and key in kind.classes and (key != "tokenizer_class" or is_known_tokenizer(value)):
                raise UserError(
                    f"{path}: {key} {shorten(repr(value))} is not the class of {kind.name}, and is refused; if the folder has a complete "
                    'tokenizer.json, set "PreTrainedTokenizerFast", or give another model'
                )
            if key not in kind.classes or nested:
                del document[key]


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document).encode()  # allows the Infinity of some published configs (mamba2)


def checked_index(path: Path) -> dict[str, str]:
    """Return the tensor name → file name, of a weights index. Raises `UserError` if it names anything but safetensors files in its
    folder."""
    named = read_object(path).get("weight_map")
    for value in named.values() if isinstance(named, dict) else [named]:
        if not (isinstance(value, str) and value.endswith(".safetensors") and Path(value).name == value):
            raise UserError(f"{path}: weight_map names {_short(value)}, which is not a safetensors file here; download the model again")
    return dict(named or {})


def copy_for_export(path: Path, base: Path, target: Path) -> None:
    """Copy a file of a base model into an export: data files, and JSON without keys that lead to code. Code and pickles are not copied.

    Raises `UserError` for a link to a file outside of the base, which would be published with the export.
    """
    if demo_models.belongs_to_archive(path):
        return
    if path.name not in SETTINGS and not DATA.fullmatch(path.name) and not DOCUMENTS.fullmatch(path.name):
        report(path, ["the file, which is not model data"])
        return
    _require_file(path)
    homes = [base.resolve(), *([base.parent.parent / "blobs"] if commit_of(base) else [])]  # the hub's cache links to its blobs
    if not any(path.resolve().is_relative_to(home) for home in homes):
        raise UserError(f"{path} is a link to {path.resolve()}, outside of the base, and would be exported; replace it by the file itself")
    if path.name in SETTINGS:
        document, dropped = cleaned(path)
        if dropped:
            report(path, dropped)
            files.make_folder(target.parent)
            files.write_in_place(target, json.dumps(document, indent=2, ensure_ascii=False).encode())
            return
    files.copy_into(path, target)


def require_safetensors(folder: Path, option: str) -> None:
    """Raises `UserError` for a folder without safetensors weights, with a command that converts pickled ones, and for quantized weights,
    whose stored values a library would take for the weights."""
    if found := sorted(folder.glob("*.safetensors")):
        for path in found:
            _require_file(path, f"{option} {folder}: ")
        check_plain(folder, read_object(folder / CONFIG) if (folder / CONFIG).is_file() else {}, read_types(folder), option)
        return
    pickled = next((path for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in sorted(folder.glob(pattern))), None)
    if pickled is None:
        raise UserError(f"{option} {folder}: contains no *.safetensors weights; download the model again")
    raise UserError(
        f"{option} {folder}: its weights are pickles ({pickled.name}), which can execute code when loaded, and are refused. "
        f"{CONVERTING.format(folder=folder, pickled=pickled.name)}"
    )


def read_types(folder: Path) -> dict[str, str]:
    """Return the name of each tensor in the safetensors files of a folder → its type, as the files name it."""
    types: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with open_weights(path) as file:
            types |= {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 - no mapping
    return types


CONVERTING = (
    "Convert them: python -c \"import torch; from safetensors.torch import save_file; w = torch.load('{pickled}', weights_only=True); "
    "save_file({{k: v.clone().contiguous() for k, v in w.items()}}, 'model.safetensors', {{'format': 'pt'}})\", started in {folder}"
)


def _require_file(path: Path, before: str = "") -> None:
    """Raises `UserError` for a pipe, a device or a socket."""
    try:
        input_files.require_regular(path)
    except OSError as error:
        raise UserError(f"{before}{path} cannot be used ({error.strerror or error}); download the model again") from error


def require_weights(missing: Iterable[str], unneeded: Sequence[str]) -> None:
    """Raises `UserError` with the names of weights that a loaded model lacks, in whose place transformers puts random numbers.

    `missing`: `missing_keys` of transformers. `unneeded`: parts of the names of those that the results do not depend on.
    """
    needed = sorted(name for name in missing if not any(part in name for part in unneeded))
    if needed:
        shown = ", ".join([*needed[:3], *["…"] * (len(needed) > 3)])
        raise UserError(f"the model file lacks {len(needed)} weights ({shown}); download the model again, or give another one")


def load_pickled_weights(path: Path, mapped: bool = False) -> dict[str, Any]:
    """Return the content of a `.pt` or `.bin` file, on the CPU: tensors, numbers, strings, lists and dictionaries. `mapped`: only tensors
    that are used are read. Raises `UserError` for all else.

    The only place where a pickle is read, with torch's restricted unpickler for weights, which calls nothing that the file names.
    """
    import torch

    try:
        input_files.require_regular(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and zipfile.is_zipfile(path))  # noqa: TID251 - the one reader of pickled weights
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # a foreign, damaged or hostile file fails in many ways
        first = strict_json.first_line(error)
        raise UserError(f"{path} does not contain plain weights ({first}); code that comes with a model is never run") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} contains a {type(found).__name__} instead of a dictionary of weights")
    return found
