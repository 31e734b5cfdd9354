"""The child process that runs the user's reward functions, and checks answers against JSON schemas and regular expressions.

It reads a line of JSON from standard input for each call and answers with a line. Memory is limited by the operating system; an alarm ends
the process if a call takes much longer than its limit, also if the parent is gone.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Required, SupportsFloat, TypedDict

from pydantic import JsonValue

from overtone.finetune.recipe import Row
from overtone.finetune.storage import strict_json
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError, match_pattern

WEIGHTS = "WEIGHTS"
"""Name of the dict in the user's file with the weights of its functions."""
RewardFunction = Callable[[str, Row], object]


class RewardCall(TypedDict, total=False):
    """A request of the parent."""

    function: Required[str | None]
    """None: check against `pattern` if there is one, otherwise against `schema`."""
    answer: Required[str]
    row: Row
    schema: Row
    pattern: str


def main() -> None:
    """Serve until standard input is closed."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a function prints must not be read as a reply
    settings = json.loads(sys.stdin.readline())
    memory = int(settings["memory"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    functions: dict[str, RewardFunction] = {}
    try:
        if settings["schemas"]:
            # An import may take longer than a call, and packages of the user's folder come later.
            check_schema("", {} if settings["schema"] is None else settings["schema"])
    except BaseException as error:
        _reply(replies, {"error": describe(error), "option": "json_schema"})
        return
    try:
        weights = dict[str, float]()
        if settings["file"] is not None:
            functions, weights = load_functions(Path(settings["file"]))
        _reply(replies, {"weights": {**weights}})
    except BaseException as error:  # the user's code may raise anything
        _reply(replies, {"error": describe(error), "option": "functions"})
        return
    for line in sys.stdin:
        call = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, 2 * settings["seconds"] + 1)
        try:
            value = compute_reward(call, functions)
        except BaseException as error:  # the same
            _reply(replies, {"error": describe(error)})
        else:
            _reply(replies, {"value": value})
        signal.setitimer(signal.ITIMER_REAL, 0)


def load_functions(path: Path) -> tuple[dict[str, RewardFunction], dict[str, float]]:
    """Return the public functions that a file defines, and their weights. Raises `RewardError` for a file without any, for one
    that cannot be called as a reward, and for weights of others."""
    spec = importlib.util.spec_from_file_location("reward_functions", path)  # noqa: TID251 - the user named it on the command line
    assert spec is not None and spec.loader is not None  # its name ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    functions: dict[str, RewardFunction] = {
        name: each
        for name, each in vars(module).items()
        if inspect.isfunction(each) and not name.startswith("_") and each.__module__ == spec.name
    }
    if not functions:
        raise RewardError("it defines no public function; a reward is a function name(answer, row) that returns a number")
    for name, each in functions.items():
        _check_signature(name, each)
    given: Mapping[str, Any] = getattr(module, WEIGHTS, {})
    if unknown := sorted(given.keys() - functions.keys()):
        raise RewardError(f"{WEIGHTS} names {', '.join(unknown)}, which the file does not define")
    return functions, {name: float(given.get(name, 1.0)) for name in functions}


def _check_signature(name: str, function: RewardFunction) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RewardError(f"{name} is async or a generator; a reward is a function name(answer, row) that returns a number")
    try:
        inspect.signature(function).bind("", {})
    except TypeError as error:
        raise RewardError(f"{name} cannot be called as {name}(answer, row): {error}; begin the name of a helper with _") from None


def compute_reward(call: RewardCall, functions: Mapping[str, RewardFunction]) -> float:
    """Return the reward of a call: of the function that it names, or, without a name, of a check against its pattern or schema."""
    if "pattern" in call:
        return match_pattern(call["answer"], call["pattern"])
    if call["function"] is None:
        return check_schema(call["answer"], call["schema"])
    value = functions[call["function"]](call["answer"], call["row"])
    if isinstance(value, SupportsFloat):
        return float(value)
    raise RewardError(f"it returned {value!r:.60}, not a number")


def check_schema(answer: str, schema: Row) -> float:
    """Return 1 if the answer is JSON that the schema accepts. References to other documents are not followed. Raises an error of jsonschema
    for an invalid schema."""
    try:
        from jsonschema.validators import validator_for
        from referencing import Registry
    except ImportError:
        raise RewardError("jsonschema is not installed; `pip install 'overtone[rewards]'`") from None

    chosen = validator_for(schema)
    chosen.check_schema(schema)
    try:
        value = strict_json.loads(answer)
    except ValueError:
        return 0.0
    return float(chosen(schema, registry=Registry()).is_valid(value))


def describe(error: BaseException) -> str:
    """Return an error of the user's code in one line."""
    if isinstance(error, RewardError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split()):.200}"


def _reply(replies: IO[str], message: Mapping[str, JsonValue]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
