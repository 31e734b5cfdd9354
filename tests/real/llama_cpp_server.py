"""llama.cpp's server in this process, from the package xllamacpp, for tests of exported GGUF files."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class LlamaCpp:
    """A loaded model. Ids are those of its own tokenizer."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=280) as answer:
            return json.load(answer)

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> str:
        """The prompt that the chat template makes."""
        body: dict[str, Any] = {"messages": messages} | ({} if tools is None else {"tools": tools})
        return str(self.post("/apply-template", body)["prompt"])

    def tokenize(self, text: str) -> list[int]:
        """With the token that it adds before a text, as it tokenizes prompts."""
        found: list[int] = self.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        return found

    def generate(self, ids: list[int], most: int) -> tuple[list[int], bool]:
        """Greedy ids after a prompt, without the one that ended them, and whether one did."""
        settings = {"temperature": 0, "top_k": 1, "repeat_penalty": 1.0, "cache_prompt": False, "return_tokens": True, "seed": 0}
        found = self.post("/completion", {"prompt": ids, "n_predict": most, **settings})
        return found["tokens"], found["stop_type"] == "eos"

    def log_probabilities(self, ids: list[int], most: int) -> dict[int, float]:
        """Token → log-likelihood of the next token, for the `most` likeliest; empty if the likeliest ends the answer or is a part of a
        character, for which llama.cpp gives none."""
        settings = {"n_predict": 1, "temperature": 0, "n_probs": most, "cache_prompt": False, "post_sampling_probs": False}
        found = self.post("/completion", {"prompt": ids, **settings}).get("completion_probabilities", [])
        return {one["id"]: one["logprob"] for place in found for one in place["top_logprobs"]}


@contextlib.contextmanager
def serve(model: Path, adapter: Path | None = None, positions: int = 1024) -> Iterator[LlamaCpp]:
    """The model, while open."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.use_jinja = str(model), positions, 1, True
    params.cpuparams.n_threads = 2
    if adapter is not None:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)]
    server = xllamacpp.Server(params)
    try:
        yield LlamaCpp(server)
    finally:
        del server
