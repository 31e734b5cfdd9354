"""Speak with an exported folder: one text, or a file of them.

python -m finetune generate --model exports/me --speaker me --text "Hello, this is my voice." --out hello.wav
python -m finetune generate --model exports/me --speaker me --text-file lines.txt --out wavs/
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune import files
from finetune.errors import UserError

from . import lines, outputs
from .exported import Exported
from .lines import Line
from .sampling import CONFIG, STOCK, Sampling, sound
from .serving_audio import wav_header
from .synthesis import Request, Spoken, Synthesizer, check

if TYPE_CHECKING:
    import numpy as np

STDOUT = Path("-")
SAMPLING_HELP = {
    "temperature": "of sampling codebook 0",
    "top_k": "sample among so many codes, 0 for all",
    "top_p": "sample among the likeliest of this share",
    "repetition_penalty": "on codes of codebook 0 that were said",
    "subtalker_temperature": "of sampling codebooks 1 to 15",
    "subtalker_top_k": "of these, likewise; 1 takes the most likely code",
    "subtalker_top_p": "of these, likewise",
}


def generate(folder: Path, argv: list[str]) -> int:
    """Body of the verb: check everything that is asked, load, speak, write. Raises `UserError` for what the model cannot do."""
    asked = parse(argv)
    exported = Exported.of(folder)
    if asked.text_file is not None:
        return speak_file(exported, asked)
    request, sampling = request_of(asked), sampling_of(asked)
    check(exported, request)
    if asked.out.is_dir():
        raise UserError(f"--out {asked.out} is a folder; --text makes one wav: name it, as in --out {asked.out / 'hello.wav'}")
    with Synthesizer(exported) as voice:
        spoken = (stream_one if asked.stream else speak_one)(voice, request, sampling, asked.out)
    tell_one(exported, request, sampling, asked.out, spoken)
    return 0


def speak_one(voice: Synthesizer, request: Request, sampling: Sampling, out: Path) -> Spoken:
    """One text into one wav."""
    (spoken,) = voice.speak([request], sampling)
    sound = outputs.wav(spoken.wave, spoken.rate)
    if out == STDOUT:
        sys.stdout.buffer.write(sound)
    else:
        files.write_bytes(out, sound)
    return spoken


def stream_one(voice: Synthesizer, request: Request, sampling: Sampling, out: Path) -> Spoken:
    """One text into a wav that grows as it is spoken. A file gets its true length at the end; stdout keeps the open one of a stream."""
    said: list[Spoken] = []
    blocks = as_wav(voice.stream(request, sampling), voice.rate, said)
    if out == STDOUT:
        for block in blocks:
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    else:
        files.make_folder(out.parent)
        files.write_blocks(out, blocks)
        files.write_bytes(out, outputs.wav(said[0].wave, said[0].rate))
    return said[0]


def as_wav(chunks: Generator[np.ndarray, None, Spoken], rate: int, said: list[Spoken]) -> Iterator[bytes]:
    """The bytes of a wav whose length is not known yet; what was spoken is put into `said` at its end."""
    yield wav_header(rate)
    while True:
        try:
            yield outputs.wav(next(chunks), rate)[outputs.HEADER :]
        except StopIteration as end:
            said.append(end.value)
            return


def tell_one(exported: Exported, request: Request, sampling: Sampling, out: Path, spoken: Spoken) -> None:
    """On stderr if the sound itself goes to stdout."""
    to = sys.stderr if out == STDOUT else sys.stdout
    speaker = exported.speaker(request.speaker) if request.reference is None else None
    seconds = len(spoken.wave) / spoken.rate
    print(f"{out}: {seconds:.2f} s, {speaker or request.reference}, language {exported.language(request.language, speaker)}", file=to)
    if not spoken.ended:
        print(
            f"it was cut off at --max-seconds {sampling.max_seconds:g}: the model did not end by itself, as a hardly trained one may not",
            file=to,
        )


def speak_file(exported: Exported, asked: argparse.Namespace) -> int:
    """A wav for each line of a file, in batches of similar length; lines that a run before has made are left as they are."""
    if asked.stream:
        raise UserError("--stream: one text at a time; give --text, or drop --stream")
    if asked.out == STDOUT or asked.out.suffix == ".wav" or asked.out.is_file():
        raise UserError(f"--out {asked.out}: --text-file makes a folder of wavs; name a folder, as in --out wavs/")
    found, sampling = lines.read(asked.text_file, request_of(asked)), sampling_of(asked)
    lines.check_all(found, lambda request: check(exported, request))
    model = outputs.model_key(exported)
    keys = {line.number: outputs.key_of(line.request, sampling, model) for line in found}
    rows = {number: row for number, row in outputs.made(asked.out).items() if row.get("key") == keys.get(number)}
    rows = {number: row for number, row in rows.items() if (asked.out / row["file"]).is_file()}
    missing = [line for line in found if line.number not in rows]
    for line, spoken in speak_lines(exported, missing, sampling, asked.batch) if missing else ():
        rows[line.number] = outputs.keep(asked.out, line, spoken, exported, sampling, keys[line.number])
    outputs.settle(asked.out, rows)
    tell_file(found, rows, len(missing), sampling, asked.out)
    return 0


def speak_lines(exported: Exported, missing: list[Line], sampling: Sampling, batch: int) -> Iterator[tuple[Line, Spoken]]:
    """Longest first, so that a batch that does not fit into memory fails at once and texts of a batch end at about the same time."""
    from tqdm import tqdm

    queue = sorted(missing, key=lambda line: len(line.request.text), reverse=True)
    with Synthesizer(exported) as voice, tqdm(total=len(queue), unit="text", disable=not sys.stderr.isatty()) as bar:
        for start in range(0, len(queue), batch):
            now = queue[start : start + batch]
            yield from zip(now, voice.speak([line.request for line in now], sampling), strict=True)
            bar.update(len(now))


def tell_file(found: list[Line], rows: dict[int, dict[str, Any]], made: int, sampling: Sampling, out: Path) -> None:
    seconds = sum(row["seconds"] for row in rows.values())
    kept = f", {len(found) - made} of them made before" if made < len(found) else ""
    print(f"{out}: {len(found)} wavs{kept}, {seconds:.1f} s of speech; {outputs.MANIFEST} lists them")
    cut = [line.place for line in found if not rows[line.number]["ended"]]
    if cut:
        print(f"{len(cut)} were cut off at --max-seconds {sampling.max_seconds:g}, where the model did not end by itself: {', '.join(cut)}")


def request_of(asked: argparse.Namespace) -> Request:
    """What the command line says for every text."""
    return Request(asked.text or "", asked.speaker, asked.language, asked.reference, asked.reference_text, asked.streamed_text)


def sampling_of(asked: argparse.Namespace) -> Sampling:
    return Sampling(**{field.name: getattr(asked, field.name) for field in fields(Sampling)})


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments. Raises `UserError` for numbers that mean nothing."""
    usual = Sampling()
    parser = argparse.ArgumentParser(prog="python -m finetune generate --model FOLDER", description="Speak with an exported voice.")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", help="what to say")
    text.add_argument("--text-file", type=Path, metavar="FILE", help='one text a line, or a .jsonl of {"text", "speaker", "language"}')
    parser.add_argument("--speaker", help="a voice of the model; may be left out if there is only one")
    parser.add_argument("--language", help="language name, ISO code or auto; by default the one that the speaker was trained with")
    parser.add_argument("--reference", type=Path, help="clip of a voice to clone instead (base exports only)")
    parser.add_argument(
        "--reference-text", help="what the clip says: a released base continues its manner then; an export was not trained for it"
    )
    parser.add_argument("--out", type=Path, help="wav file to write, or - for stdout; of --text-file a folder (default speech.wav, wavs)")
    parser.add_argument("--stream", action="store_true", help="write the sound while it is spoken, for a player: --out - | ffplay -")
    parser.add_argument("--batch", type=int, default=8, help="texts of --text-file that are spoken together (default 8)")
    parser.add_argument("--greedy", action="store_true", help="always take the most likely code instead of sampling")
    parser.add_argument("--seed", type=int, default=usual.seed, help="of the sampling")
    for name, help_text in SAMPLING_HELP.items():
        kind = int if name.endswith("top_k") else float
        default = f"(default: as the model's {CONFIG} says, else {STOCK[name]})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"{help_text} {default}")
    parser.add_argument("--max-seconds", type=float, default=usual.max_seconds, help="stop there if the model does not end by itself")
    parser.add_argument("--streamed-text", action="store_true", help="give the model the text token by token, not as it was trained here")
    asked = parser.parse_args(argv)
    asked.out = asked.out or Path("speech.wav" if asked.text_file is None else "wavs")
    check_numbers(asked)
    return asked


def check_numbers(asked: argparse.Namespace) -> None:
    """Raise `UserError` for what no sampling can do."""
    bounds = {
        "batch": asked.batch >= 1,
        "seed": asked.seed >= 0,
        "max_seconds": 0 < asked.max_seconds < float("inf"),
        **{name: sound(name, value) for name in STOCK if (value := getattr(asked, name, None)) is not None},
    }
    for name in (name for name, within in bounds.items() if not within):
        hint = "; --greedy takes the most likely code always" if name.endswith("temperature") else ""
        raise UserError(f"--{name.replace('_', '-')} {getattr(asked, name):g} is out of its range{hint}")
