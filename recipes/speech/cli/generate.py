"""`overtone generate` of a speech recipe: speech from an exported folder, for one text or for a file of texts.

A recipe describes its part of the command in a `GenerateCommand`. Must not import torch: `--help` reads this module.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.storage import files
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark, read_synthetic_mark
from overtone.finetune.terminal import is_terminal, print_diagnostic, print_line
from overtone.recipes.ray_generation import add_engine_options, open_engine, read_engine
from overtone.recipes.speech import text_inputs
from overtone.recipes.speech.batch_synthesis import speak_batches
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest, SpeechResult, SpeechSampling, Voice, VoiceFolder
from overtone.recipes.speech.marked_audio_encoding import encode_marked_wav, encode_pcm, wav_header
from overtone.recipes.speech.model_fingerprint import compute_model_key
from overtone.recipes.speech.passages import join_results, split_request
from overtone.recipes.speech.sampling_settings import SamplingScheme, check_numbers
from overtone.recipes.speech.spoken_text import SpokenText, describe_total
from overtone.recipes.speech.text_inputs import TextLine
from overtone.recipes.speech.text_speech import PreparedText, prepare_text, speak_passages, stream_passages

from . import synthesis_manifest

STDIN = "-"
STDOUT = Path("-")
Options = TypeVar("Options", SpeechRequest, SpeechSampling)


@dataclass(frozen=True)
class GenerateCommand:
    """Options and functions that a speech recipe adds to the command."""

    speech: SpeechRecipe
    scheme: SamplingScheme
    Request: type[SpeechRequest] = SpeechRequest
    """Each of its fields is an option, with `add_options` for those that a `SpeechRequest` does not have."""
    Sampling: type[SpeechSampling] = SpeechSampling
    """Each of its fields is an option: of `SpeechSampling`, or of the scheme."""
    help: Mapping[str, str] = field(default_factory=dict)
    """Option, as in "--reference" → help that replaces the usual one."""
    add_options: Callable[[Any], None] | None = None
    """Adds the recipe's other options to the group "sampling" of the parser."""

    def run(self, folder: Path, argv: list[str]) -> int:
        """Body of the command: parse and check the arguments, load the model, speak, write. Raises `UserError` for an invalid request."""
        args = self.parse(argv)
        exported, request = self.speech.inspect(folder), make_from_options(self.Request, args)
        sampling = make_from_options(self.Sampling, args)
        if args.text_file is not None:
            return speak_file(exported, self.speech.inspect, request, sampling, args)
        text = prepare_text(exported, request, sampling.max_seconds, "--text")
        if args.out.is_dir():
            example = args.out / "hello.wav"
            raise UserError(f"--out {args.out} is a folder; --text writes one wav file: give its name, as in --out {example}")
        check_replaced(args.out, args.out)
        with closing(exported.open()) as voice:
            spoken = (stream_one if args.stream else speak_one)(voice, text.passages, sampling, args.out, exported.folder.name)
        print_summary(exported.complete(text.request), sampling, args.out, spoken, len(text.passages))
        report_removed([text.cleaned], args.out)
        return 0

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parse the arguments of the command. Raises `UserError` for numbers out of range."""
        parser = self._make_parser()
        args = parse_arguments(parser, argv)
        args.text = sys.stdin.read().strip() if args.text == STDIN else args.text or ""
        args.out = args.out or Path("speech.wav" if args.text_file is None else "wavs")
        own = {name: value for name in self.scheme.help if (value := getattr(args, name)) is not None}
        check_numbers({"batch": args.batch, "seed": args.seed, "max_seconds": args.max_seconds, **own})
        read_engine(args)
        if args.engine != "local" and args.text_file is None:
            raise UserError("--engine ray generates a file of texts; give --text-file FILE instead of --text, or remove --engine")
        return args

    def _make_parser(self) -> argparse.ArgumentParser:
        defaults = SpeechSampling()
        parser = argparse.ArgumentParser(
            prog="overtone generate --model MODEL",
            description="Generate speech with an exported voice.",
            epilog="examples:\n"
            f"  overtone generate --model runs/{self.speech.name} --text 'Hello, this is my voice.' --out hello.wav\n"
            "  overtone generate --model exports/me --text-file lines.txt --out wavs/",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        in_out, voice, decoding = (parser.add_argument_group(title) for title in ("text and output", "voice", "sampling"))
        text = in_out.add_mutually_exclusive_group(required=True)
        text.add_argument("--text", help="text to speak; - reads it from standard input")
        text.add_argument(
            "--text-file", type=Path, metavar="FILE", help='a file with one text per line, or a .jsonl of {"text", "speaker", "language"}'
        )
        for option, kind, usual in (
            ("--speaker", str, "speaker of the model (default: the only one, if it has one)"),
            ("--language", str, "language name or ISO code (default: the language that the speaker was trained in)"),
            ("--reference", Path, "clip of a voice to clone instead of --speaker"),
            ("--reference-text", str, "transcript of the clip"),
        ):
            voice.add_argument(option, type=kind, help=self.help.get(option, usual))
        in_out.add_argument(
            "--out", type=Path, help="wav file to write, or - for stdout; with --text-file a folder (default: speech.wav, or wavs)"
        )
        in_out.add_argument(
            "--stream", action="store_true", help="write the audio while it is generated, for example to a player: --out - | ffplay -"
        )
        in_out.add_argument("--batch", type=int, default=8, help="texts of --text-file per batch (default 8)")
        decoding.add_argument("--greedy", action="store_true", help="always take the most likely code instead of sampling")
        decoding.add_argument("--seed", type=int, default=defaults.seed, help="random seed of the sampling")
        self.scheme.add_options(decoding)
        decoding.add_argument(
            "--max-seconds",
            type=float,
            default=defaults.max_seconds,
            help="cut a passage off here if the model has not ended it; long texts are spoken in passages",
        )
        if self.add_options is not None:
            self.add_options(decoding)
        add_engine_options(parser)
        return parser


def check_replaced(out: Path, wav: Path, model: str | None = None) -> None:
    """Raises `UserError` if `wav`, which `--out` would replace, was not generated, or with another `model` than this one."""
    if wav == STDOUT or not wav.is_file():
        return
    mark = read_synthetic_mark(wav)
    if mark is None:
        raise UserError(f"--out {out}: {wav} exists and was not generated here, so it would be lost; choose another name, or remove it")
    if model is not None and mark.comment != SyntheticMark(model, mark.software).comment:
        raise UserError(f"--out {out}: {wav} is speech of {mark.model or 'an unnamed model'}, not of {model}; choose another folder")


def make_from_options(kind: type[Options], args: argparse.Namespace) -> Options:
    """An instance whose fields are the options of the same names."""
    return kind(**{field.name: getattr(args, field.name) for field in fields(kind)})


def speak_one(voice: Voice, passages: list[SpeechRequest], sampling: SpeechSampling, out: Path, model: str) -> SpeechResult:
    """Speak the passages of one text and write one wav file, marked with the name of the model."""
    spoken = speak_passages(voice, passages, sampling)
    data = encode_marked_wav(spoken.wave, spoken.rate, SyntheticMark(model))
    if out == STDOUT:
        sys.stdout.buffer.write(data)
    else:
        files.write_bytes(out, data)
    return spoken


def stream_one(voice: Voice, passages: list[SpeechRequest], sampling: SpeechSampling, out: Path, model: str) -> SpeechResult:
    """Write the audio while it is generated. A file gets its true length at the end; on stdout the header says that the length is
    unknown."""
    result: list[SpeechResult] = []
    blocks = stream_wav(stream_passages(voice, passages, sampling), voice.rate, result, model)
    if out == STDOUT:
        for block in blocks:
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    else:
        files.make_folder(out.parent)
        files.write_blocks(out, blocks)
        files.write_bytes(out, encode_marked_wav(result[0].wave, result[0].rate, SyntheticMark(model)))
    return result[0]


def stream_wav(chunks: Generator[np.ndarray, None, SpeechResult], rate: int, result: list[SpeechResult], model: str) -> Iterator[bytes]:
    """The bytes of a wav of unknown length. At the end, the return value of `chunks` is appended to `result`."""
    yield wav_header(rate, mark=SyntheticMark(model))
    while True:
        try:
            yield encode_pcm(next(chunks))
        except StopIteration as end:
            result.append(end.value)
            return


def print_summary(request: SpeechRequest, sampling: SpeechSampling, out: Path, spoken: SpeechResult, passages: int) -> None:
    """Print a summary of one text to stdout, or to stderr if stdout has the audio. `request` as `VoiceFolder.complete` returns it."""
    report = print_diagnostic if out == STDOUT else print_line
    seconds = len(spoken.wave) / spoken.rate
    language = "" if request.language is None else f", language {request.language}"
    spoken_in = f", spoken in {passages} passages" if passages > 1 else ""
    report(f"{out}: {seconds:.2f} s, {request.speaker or request.reference}{language}{spoken_in}")
    if not spoken.ended:
        what = "the speech" if passages == 1 else "a passage of the speech"
        report(f"{what} was cut off at --max-seconds {sampling.max_seconds:g}: the model did not end it; more training may help")


def report_removed(texts: list[SpokenText], out: Path) -> None:
    """Print what was dropped from the texts because nobody speaks it."""
    if removed := describe_total(texts):
        (print_diagnostic if out == STDOUT else print_line)(f"not spoken: {removed}")


def speak_file(
    exported: VoiceFolder,
    inspect: Callable[[Path], VoiceFolder],
    defaults: SpeechRequest,
    sampling: SpeechSampling,
    args: argparse.Namespace,
) -> int:
    """Write one wav per line of a file, in batches of similar length. Wavs from an earlier run are reused."""
    if args.stream:
        raise UserError("--stream works on one text; use --text, or remove --stream")
    if args.out == STDOUT or args.out.suffix == ".wav" or args.out.is_file():
        raise UserError(f"--out {args.out}: --text-file writes a folder of wav files; give a folder, as in --out wavs/")
    given = text_inputs.read_lines(args.text_file, defaults)
    prepared: list[PreparedText] = []

    def check(request: SpeechRequest) -> None:
        prepared.append(prepare_text(exported, request, sampling.max_seconds, "the line"))

    text_inputs.check_lines(given, check)
    lines = [replace(line, request=text.request) for line, text in zip(given, prepared, strict=True)]
    model = compute_model_key(exported.folder)
    keys = {line.number: synthesis_manifest.compute_line_key(line.request, sampling, model) for line in lines}
    rows = {number: row for number, row in synthesis_manifest.read_manifest(args.out).items() if row.get("key") == keys.get(number)}
    rows = {number: row for number, row in rows.items() if (args.out / row["file"]).is_file()}
    missing = [line for line in lines if line.number not in rows]
    for line in missing:
        check_replaced(args.out, args.out / line.name, exported.folder.name)
    for line, spoken in speak_lines(exported, inspect, missing, sampling, args) if missing else ():
        request = exported.complete(line.request)
        rows[line.number] = synthesis_manifest.write_line(
            args.out, line, request, spoken, sampling.seed, keys[line.number], exported.folder.name
        )
    synthesis_manifest.write_manifest(args.out, rows)
    print_file_summary(lines, rows, len(missing), sampling, args.out)
    report_removed([text.cleaned for text in prepared], args.out)
    return 0


def speak_lines(
    exported: VoiceFolder,
    inspect: Callable[[Path], VoiceFolder],
    missing: list[TextLine],
    sampling: SpeechSampling,
    args: argparse.Namespace,
) -> Iterator[tuple[TextLine, SpeechResult]]:
    """Speak the longest passages first: a batch too large for memory fails at once, and the passages of a batch end at about the same
    time. A line is complete with its last passage."""
    from tqdm import tqdm

    results: dict[int, dict[int, SpeechResult]] = {line.number: {} for line in missing}
    passages = [(line, at, request) for line in missing for at, request in enumerate(split_request(line.request, sampling.max_seconds))]
    counts = Counter(line.number for line, _, _ in passages)
    queue = sorted(passages, key=lambda passage: len(passage[2].text), reverse=True)
    batches = [queue[start : start + args.batch] for start in range(0, len(queue), args.batch)]
    requests = [[request for _, _, request in now] for now in batches]
    needed = [exported.folder, *(line.request.reference for line in missing)]
    with (
        open_engine(read_engine(args), args.out, needed) as remote,
        closing(speak_batches(inspect, exported.folder, requests, sampling, remote)) as spoken,
        tqdm(total=len(missing), unit="text", disable=not is_terminal(sys.stderr)) as bar,
    ):
        for index, batch_results in spoken:
            for (line, at, _), result in zip(batches[index], batch_results, strict=True):
                results[line.number][at] = result
                if len(results[line.number]) == counts[line.number]:
                    yield line, join_results([result for _, result in sorted(results.pop(line.number).items())])
                    bar.update()


def print_file_summary(lines: list[TextLine], rows: dict[int, dict[str, Any]], generated: int, sampling: SpeechSampling, out: Path) -> None:
    """Print what the folder contains; `generated` counts the lines spoken by this run."""
    seconds = sum(row["seconds"] for row in rows.values())
    kept = f", {len(lines) - generated} of them from an earlier run" if generated < len(lines) else ""
    print_line(f"{out}: {format_count(len(lines), 'wav')}{kept}, {seconds:.1f} s of speech; {synthesis_manifest.MANIFEST} lists them")
    cut = [line.place for line in lines if not rows[line.number]["ended"]]
    if cut:
        limit = f"--max-seconds {sampling.max_seconds:g}"
        print_line(f"{len(cut)} were cut off at {limit} because the model did not end them: {', '.join(cut)}")
