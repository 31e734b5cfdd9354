"""`serve --blind`: a page that plays two systems on random sides, and asks which is better.

All texts are spoken before the page opens, so that no waiting time shows which system is which. The clips are kept in memory, and say that
they are synthetic but not of which model. For a folder of `overtone pairs`, the two clips are of one model, and nothing is spoken.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route as Endpoint

from overtone.finetune.errors import UserError, format_count
from overtone.finetune.pages import page_assets, web_server
from overtone.finetune.pages.jinja_environment import make_environment
from overtone.finetune.pages.request_validation import RequestError, Route, add_request_guard
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.json_schema import parse_model
from overtone.finetune.storage.strict_json import loads_object
from overtone.finetune.terminal import print_line
from overtone.recipes.serving.access_control import AccessControl, AccessPolicy
from overtone.recipes.serving.api_errors import to_refusal
from overtone.recipes.speech.evaluation.samples_during_training import parse_prompt
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.marked_audio_encoding import UNNAMED, encode_marked_flac
from overtone.recipes.speech.model_fingerprint import compute_model_key
from overtone.recipes.speech.passages import join_results, split_request
from overtone.recipes.speech.serving.blind_trials import (
    CHOICES,
    REWARDS,
    AnsweredError,
    BlindTrials,
    Trial,
    make_clip_trials,
    make_trials,
    read_texts,
)
from overtone.recipes.speech.spoken_text import prepare_request

if TYPE_CHECKING:
    from overtone.recipes.speech.interface import VoiceFolder

PAGE = Path(__file__).with_name("blind_page.html")
UNSTORED = {"cache-control": "no-store"}
LARGEST_ANSWER = 2**10
BATCH = 8
Clips = Mapping[tuple[str, str], bytes]
"""(system, text) → FLAC file."""


def serve_blind(exports: Mapping[str, VoiceFolder], url: str, policy: AccessPolicy, args: argparse.Namespace) -> int:
    """Body of `serve --blind`, of two models by their names, or of a folder with clips. Raises `UserError`, before a model is loaded, for
    what cannot be compared. Blocks until SIGTERM or Ctrl-C."""
    trials, clips = find_clips(args.blind, args.results) if args.blind.is_dir() else speak_trials(exports, args)
    announcement = f"serve: {url}   (stop with Ctrl-C; answers are saved to {args.results})"
    web_server.run_server(build_app(trials, clips, policy), args.host, args.port, announcement, proxies=policy.proxies)
    print_line(f"serve: stopped. {trials.outcome.describe()}")
    return 0


def find_clips(folder: Path, results: Path) -> tuple[BlindTrials, Clips]:
    """The trials between clips in a folder of `overtone pairs`, and their clips. Raises `UserError` for a folder without any."""
    from overtone.recipes.speech.preferences.clip_decisions import TRIALS, ClipTrial, compute_trial_key, is_unchanged
    from overtone.recipes.speech.preferences.pair_dataset import RECORDS, read_records

    found, clips, skipped = dict[str, tuple[str, str, str, str]](), dict[tuple[str, str], bytes](), 0
    if not all((folder / name).is_file() for name in (TRIALS, RECORDS)):
        raise UserError(f"--blind {folder}: has no {TRIALS} of `overtone pairs`; give its --out folder, or a file of texts")
    records = {record.audio: record for record in read_records(folder).values()}
    for line in input_files.read_lines(folder / TRIALS):
        try:
            trial = parse_model(ClipTrial, loads_object(line))
            text, pair = f"{trial.speaker}|{trial.text}", [records[audio] for audio in trial.clips]
            same_text = {(clip.text, clip.speaker) for clip in pair} == {(trial.text, trial.speaker)}
            if text in found or not same_text or pair[0].codes == pair[1].codes or not all(is_unchanged(folder, clip) for clip in pair):
                raise ValueError
        except (UserError, ValueError, KeyError):
            skipped += 1
            continue
        found[text] = (compute_trial_key(*pair), text, pair[0].audio, pair[1].audio)
        for name, clip in zip(REWARDS, pair, strict=True):
            with input_files.open_file(files.resolve_under(folder, clip.audio)) as file:
                clips[name, text] = file.read()
    if skipped:
        reasons = "whose clips are missing, have changed, speak another text, or repeat an earlier one"
        print_line(f"{folder}: {format_count(skipped, 'text')} left out, {reasons}")
    if not found:
        raise UserError(f"--blind {folder}: no text has two different clips to compare; run `overtone pairs` again")
    print_line(f"{folder}: no model is loaded; the two clips of {format_count(len(found), 'text')} are compared")
    return open_trials(make_clip_trials([*found.values()]), results), clips


def speak_trials(exports: Mapping[str, VoiceFolder], args: argparse.Namespace) -> tuple[BlindTrials, Clips]:
    """The trials of two models, and the clips of those without an answer. Raises `UserError` for what cannot be compared."""
    if len(exports) != 2:
        raise UserError(f"--blind compares two models, and {len(exports)} were given; give --model MODEL twice, or also --base MODEL")
    texts = read_texts(args.blind)
    sampling = SpeechSampling(seed=args.seed, max_seconds=args.max_seconds)
    for name, exported in exports.items():
        check_texts(name, exported, texts, sampling)
    keys = {name: compute_model_key(exported.folder) for name, exported in exports.items()}
    trials = open_trials(make_trials(texts, keys, str(sampling)), args.results)
    open_texts = [trial.text for key, trial in trials.trials.items() if key not in trials.answers]
    spoken = [speak_texts(name, exported, open_texts, sampling) for name, exported in exports.items()]
    return trials, {pair: clip for clips in spoken for pair, clip in clips.items()}


def open_trials(trials: Sequence[Trial], results: Path) -> BlindTrials:
    """The trials with the answers in a file; prints how many of these are to other trials. Raises `UserError` for another file."""
    opened = BlindTrials(trials, results)
    if opened.others:
        answers = format_count(opened.others, "answer")
        print_line(f"{results}: {answers} to other texts, models, clips or sampling settings, which do not count here")
    return opened


def check_texts(name: str, exported: VoiceFolder, texts: Sequence[str], sampling: SpeechSampling) -> None:
    """Raises `UserError`, with the text, for one that a model cannot speak."""
    for text in texts:
        try:
            for passage in list_passages(text, exported, sampling):
                exported.check(passage)
        except UserError as error:
            raise UserError(f"--blind: {name} cannot speak {text!r}: {error}") from error


def list_passages(text: str, exported: VoiceFolder, sampling: SpeechSampling) -> list[SpeechRequest]:
    """Return the passages of a line of the texts, without the parts that nobody speaks. Raises `UserError` if nothing is left."""
    request, _ = prepare_request(parse_prompt(text, exported.first_speaker), "the line")
    return split_request(request, sampling.max_seconds)


def speak_texts(name: str, exported: VoiceFolder, texts: Sequence[str], sampling: SpeechSampling) -> dict[tuple[str, str], bytes]:
    """The clips of one model, which is loaded for this alone; prints the progress after each batch."""
    clips: dict[tuple[str, str], bytes] = {}
    if not texts:
        return clips
    with closing(exported.open()) as voice:
        for start in range(0, len(texts), BATCH):
            part = texts[start : start + BATCH]
            passages = [list_passages(text, exported, sampling) for text in part]
            results = iter(voice.speak([passage for each in passages for passage in each], sampling))
            for text, each in zip(part, passages, strict=True):
                spoken = join_results([next(results) for _ in each])
                clips[name, text] = encode_marked_flac(spoken.wave, spoken.rate, UNNAMED)
                if not spoken.ended:
                    print_line(f"{name}: {text[:40]!r} was cut off at --max-seconds {sampling.max_seconds:g}: the model did not end it")
            print_line(f"{name}: {len(clips)} of {len(texts)} texts spoken")
    return clips


def build_app(trials: BlindTrials, clips: Clips, policy: AccessPolicy) -> Starlette:
    """The page and its requests behind access control."""
    routes = (
        Route("GET", "/"),
        Route("GET", "/trial"),
        Route("GET", "/clip/[0-9a-f]{12}/(left|right)"),
        Route("POST", "/answer", largest=LARGEST_ANSWER, check=parse_answer),
        page_assets.ROUTE,
    )
    middleware = [
        Middleware(web_server.add_security_headers),
        Middleware(add_request_guard, routes=routes, admit=AccessControl(policy).admit, answer=_explain, proxies=policy.proxies),
    ]
    page_text = make_environment(PAGE.parent).get_template(PAGE.name).render()

    def page(_: Request) -> Response:
        return HTMLResponse(page_text)

    async def show_trial(_: Request) -> Response:
        return JSONResponse(describe_state(trials), headers=UNSTORED)

    async def play(request: Request) -> Response:
        trial = trials.trials.get(request.path_params["key"])
        system = None if trial is None else (trial.left if request.path_params["side"] == "left" else trial.right)
        clip = None if trial is None else clips.get((str(system), trial.text))
        if clip is None:
            return JSONResponse({"error": {"message": "there is no such trial; reload the page"}}, 404)
        return Response(clip, media_type="audio/flac", headers=UNSTORED)

    async def answer(request: Request) -> Response:
        given = await request.json()
        try:
            trials.answer(given["trial"], given["choice"])
        except KeyError:
            return JSONResponse({"error": {"message": "there is no such trial; reload the page"}}, 404)
        except AnsweredError:
            return JSONResponse({"error": {"message": "this trial has another answer already; reload the page"}}, 409)
        except (UserError, OSError) as error:
            return JSONResponse({"error": {"message": f"the answer was not saved ({error}); try again"}}, 503)
        return JSONResponse(describe_state(trials))

    endpoints = [
        Endpoint("/", page),
        Endpoint("/trial", show_trial),
        Endpoint("/clip/{key}/{side}", play),
        Endpoint("/answer", answer, methods=["POST"]),
        page_assets.serve_assets(PAGE.with_suffix(".js")),
    ]
    return Starlette(routes=endpoints, middleware=middleware)


def _explain(rejected: RequestError) -> Response:
    return to_refusal(rejected).response()


def parse_answer(body: Any) -> dict[str, str]:
    """The body of an answer. Raises `ValueError` with the reason for any other."""
    if not isinstance(body, dict) or body.keys() != {"trial", "choice"} or not isinstance(body["trial"], str):
        raise ValueError('expected {"trial": KEY, "choice": "left", "right" or "same"}')
    if body["choice"] not in CHOICES:
        raise ValueError(f"choice {str(body['choice'])[:40]!r} is none of {', '.join(CHOICES)}")
    return body


def describe_state(trials: BlindTrials) -> dict[str, JsonValue]:
    """The trial to show, without the systems' names; at the end, the outcome with them."""
    done, total, trial = len(trials.answers), len(trials.trials), trials.next
    if trial is None:
        return {"done": done, "total": total, "outcome": trials.outcome.describe()}
    return {"done": done, "total": total, "trial": trial.key, "text": parse_prompt(trial.text, None).text}
