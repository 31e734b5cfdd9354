"""The options of llm_grpo."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

import regex
from pydantic import AfterValidator, Field, model_validator

from overtone.finetune.config import COMMAND_LINE_ONLY, FilePath, Section
from overtone.recipes.language.options import ChatOptions
from overtone.recipes.policy.policy_options import PolicyOptions

FailureTreatment = Literal["leave_out", "zero", "stop"]


def _judge_address(value: str) -> str:
    address = value.rstrip("/")
    try:
        parts = urlsplit(address)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets or a port that cannot be read
        known = False
    if not known or not re.fullmatch("[!-~]+", address):
        raise ValueError("expected a web address, as http://127.0.0.1:8000/v1")
    if "@" in address or "?" in address or "#" in address:
        raise ValueError("expected an address without a user, a password and a query; a key is sent if key_variable names its variable")
    return address


def _pattern(value: str) -> str:
    try:
        regex.compile(value)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression that can be used ({error})") from None
    return value


class Reward(Section):
    weight: float = 1.0
    """Factor of this reward in the sum; below 0 for something unwanted."""


class RegularExpression(Reward):
    pattern: Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_pattern)]
    """The answer without white space around it must match it as a whole, for a reward of 1."""


class NumericAnswer(Reward):
    tolerance: float = Field(default=1e-6, ge=0)
    """Largest difference from the row's answer, relative to it if that is above 1."""


class JsonSchema(Reward):
    file: FilePath | None = None
    """File with the schema of all answers; null: each row has its own in `schema`."""


class Judge(Reward):
    url: Annotated[str, AfterValidator(_judge_address)] = Field(json_schema_extra={COMMAND_LINE_ONLY: "names a server that gets data"})
    """Address of an OpenAI-compatible API, as http://127.0.0.1:8000/v1. It gets prompts and answers, so only the command line
    can name it."""
    model: str = Field(min_length=1)
    """Name of the model at that address."""
    instruction: str = "Rate how well the answer solves the task, from 0 to 10. Reply with the number alone."
    """System message of the judge. Its reply must contain one number from 0 to 10, also as 7/10; the reward is a tenth of it."""
    seconds: float = Field(default=30.0, gt=0)
    """Time limit of one judgement."""
    key_variable: str | None = Field(
        default=None, min_length=1, json_schema_extra={COMMAND_LINE_ONLY: "names a variable whose value is sent away"}
    )
    """Environment variable with the key, such as OPENAI_API_KEY; null: no key is sent. Only the command line can name it."""


class Overlong(Reward):
    tokens: int = Field(ge=1)
    """The punishment grows over the last so many tokens before `max_new_tokens`."""


class Rewards(Section):
    """Rewards of an answer. Their weighted sum is what is trained."""

    exact_match: Reward | None = None
    """1 if the answer is the row's `answer`, without white space around both."""
    numeric_answer: NumericAnswer | None = None
    """1 if the last number of the answer is the row's `answer`."""
    regular_expression: RegularExpression | None = None
    """1 if the answer matches a regular expression."""
    json_schema: JsonSchema | None = None
    """1 if the answer is JSON that a schema accepts."""
    length: Reward | None = None
    """Share of `max_new_tokens` that the answer leaves: shorter answers get more with a weight above 0."""
    overlong: Overlong | None = None
    """From 0 for an answer that leaves `tokens` tokens or more of `max_new_tokens` to −1 for the longest, and for one that is cut off: the
    soft overlong punishment of DAPO (Yu et al. 2025, eq. 13). Only beside other rewards."""
    judge: Judge | None = None
    """Rating by a model at an OpenAI-compatible address."""
    functions: FilePath | None = Field(default=None, json_schema_extra={COMMAND_LINE_ONLY: "names code"})
    """Python file whose public functions `name(answer, row)` return a number each; WEIGHTS in it is a dict of their weights. It is code, so
    only the command line can name it. The functions run in a process of their own."""
    on_failure: FailureTreatment = "leave_out"
    """Treatment of an answer with a reward that raises, returns no finite number, or takes too long. `leave_out`: its reward is unknown, so
    it has no part in the mean of its group and in the loss, neither for nor against it. `zero`: the failed reward counts as 0, for
    functions that fail because an answer is bad; it is trained against the answer if the others of its group have more. `stop`: the run
    ends. All of them are counted as `failed_rewards`."""
    seconds: float = Field(default=10.0, gt=0)
    """Time limit of a function, and of the check against a schema or a pattern, for one answer."""
    memory_gib: float = Field(default=4.0, gt=0)
    """Memory limit of the process in which these run."""


class Options(PolicyOptions, ChatOptions):
    """Options of training by rewards."""

    rewards: Rewards = Rewards()
    """Rewards of an answer; at least one is needed."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Longest answer, without the token that ends it. A longer one is cut off, and counted."""
    dynamic_sampling: int = Field(default=0, ge=0, le=64)
    """Largest number of further prompts that are answered one after the other in the place of one whose group has no variance in its
    rewards, `overlong` not counted (DAPO, eq. 11); 0: such a group stays, and teaches nothing. They are drawn from the rows of the same
    file that are not longer."""

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        if self.loss_head != "chunked":
            raise ValueError(f"loss_head: {self.loss_head} computes no log-probability of each token; use chunked")
        overlong = self.rewards.overlong
        if overlong is not None and overlong.tokens > self.max_new_tokens:
            raise ValueError(f"rewards.overlong.tokens: {overlong.tokens} is more than max_new_tokens: {self.max_new_tokens}; lower it")
        return self
