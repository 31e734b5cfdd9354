"""Calls reward functions and checks answers in a child process, which is ended when a call takes too long, and restarted for the next."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError, RewardTimeoutError

START_SECONDS = 120.0
"""Limit for the start, in which a file may import large packages."""
LONGEST_REPLY = 2**16
Message = Mapping[str, JsonValue]


class RewardProcess:
    """Owns the child process. For a single thread."""

    def __init__(self, file: Path | None, seconds: float, memory_gib: float, schema: JsonValue = None, schemas: bool = False) -> None:
        """`file`: with the user's functions; None: answers are only checked. `seconds`: limit of one call. `schemas`: whether answers are
        checked against schemas; `schema`: that of all answers. No process runs before the first call."""
        limits = {"seconds": seconds, "memory": memory_gib * 2**30}
        self._settings: Message = {"file": None if file is None else str(file.resolve()), "schema": schema, "schemas": schemas, **limits}
        self._file, self._seconds = file, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def read_weights(self) -> dict[str, float]:
        """Start the process, and return the weight of each function. Raises `UserError` for a file or a schema that cannot be used."""
        if self._file is not None and (self._file.suffix != ".py" or not self._file.is_file()):
            raise UserError(f"options.rewards.functions: {self._file} is no Python file; give the path of one whose name ends with .py")
        reply = self._start()
        if "error" in reply:
            self.close()
            of_file = "" if self._file is None or reply.get("option") == "json_schema" else f" {self._file}:"
            raise UserError(f"options.rewards.{reply.get('option', 'functions')}:{of_file} {reply['error']}")
        weights: dict[str, float] = reply["weights"]  # type: ignore[assignment]  # the child makes them
        if wrong := [name for name, weight in weights.items() if not math.isfinite(weight)]:
            raise UserError(f"options.rewards.functions: {self._file}: the weight of {wrong[0]} is not finite")
        return weights

    def call(self, answer: str, row: Row, function: str) -> float:
        """Return what a function returns for an answer. Raises `RewardError`."""
        return self._call({"function": function, "answer": answer, "row": row})

    def check_schema(self, answer: str, schema: JsonValue) -> float:
        """Return 1 if the answer is JSON that the schema accepts, otherwise 0. Raises `RewardError`."""
        return self._call({"function": None, "answer": answer, "schema": schema})

    def match_pattern(self, answer: str, pattern: str) -> float:
        """Return 1 if the pattern matches the answer as a whole, otherwise 0. Raises `RewardError`."""
        return self._call({"function": None, "answer": answer, "pattern": pattern})

    def close(self) -> None:
        """End the process, and what it has started."""
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _call(self, message: Message) -> float:
        if self._process is None:
            started = self._start()
            if "error" in started:
                self.close()
                raise RewardError(f"the process does not start again: {started['error']}")
        reply = self._exchange(message, self._seconds)
        if "error" in reply:
            raise RewardError(str(reply["error"]))
        value = float(reply["value"])  # type: ignore[arg-type]  # the child makes it
        if not math.isfinite(value):
            raise RewardError(f"it returned {value}")
        return value

    def _start(self) -> Message:
        """Start the process; returns its first message."""
        # Without the current folder (-P, no empty entry): a file in it would replace a module of the child.
        root = str(next(folder for folder in Path(__file__).absolute().parents if (folder / "overtone").is_dir()))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "overtone.recipes.llm_grpo.rewards.reward_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the training
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])},
        )
        try:
            return self._exchange(self._settings, START_SECONDS)
        except RewardError as error:
            return {"error": str(error)}

    def _exchange(self, message: Message, seconds: float) -> Message:
        """Send a message and return the reply. Raises `RewardError` if there is none in time, or if the process ends."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        deadline = time.monotonic() + seconds
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._explain_end(process) from None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise RewardTimeoutError(f"it had not ended after {seconds:g} s")
            part = os.read(process.stdout.fileno(), LONGEST_REPLY)
            if not part or len(self._unread) > LONGEST_REPLY:
                raise self._explain_end(process)
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        reply: Message = json.loads(line)
        return reply

    def _explain_end(self, process: subprocess.Popen[bytes]) -> RewardError:
        self.close()
        return RewardError(f"its process ended with code {process.returncode}")
