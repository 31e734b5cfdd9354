"""Scores answers by all rewards that the options set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.finetune.storage import input_files, strict_json
from overtone.finetune.terminal import make_safe, print_diagnostic
from overtone.recipes.llm_grpo.options import Reward, Rewards
from overtone.recipes.llm_grpo.rewards import answer_checks
from overtone.recipes.llm_grpo.rewards.answer_checks import ANSWER, LARGEST, RewardError, RewardTimeoutError
from overtone.recipes.llm_grpo.rewards.judge_client import JudgeClient
from overtone.recipes.llm_grpo.rewards.reward_process_client import RewardProcess

JUDGED_AT_ONCE = 8
MOST_LATE = 5
"""Calls of a reward that may take too long in a step of this rank; further ones fail at once, so that a step does not take hours."""
BUILT_IN = ("exact_match", "numeric_answer", "regular_expression", "json_schema", "length", "overlong", "judge")
SHAPING = "overlong"
"""The built-in reward that says nothing about whether an answer is right."""


@dataclass(frozen=True)
class GeneratedText:
    """An answer to score."""

    text: str
    tokens: int
    """With the one that ended it."""
    prompt: str
    row: Row
    where: str
    """File and line of the row."""


@dataclass
class ScoredAnswer:
    """The rewards of an answer."""

    rewards: dict[str, float] = field(default_factory=dict)
    """By name, without weights; a failed one is 0."""
    failures: list[str] = field(default_factory=list)
    total: float = 0.0
    """Weighted sum."""
    shaping: float = 0.0
    """Part of `SHAPING` in it."""
    unknown: bool = False
    """True if a failed reward leaves the answer out of its group."""


def list_weights(rewards: Rewards) -> dict[str, float]:
    """Return the weight of each built-in reward that is set. Raises `UserError` if neither one of them nor a file with functions is."""
    given: dict[str, Reward | None] = {name: getattr(rewards, name) for name in BUILT_IN}
    weights = {name: reward.weight for name, reward in given.items() if reward is not None}
    if weights.keys() <= {SHAPING} and rewards.functions is None:
        found = "has only overlong, which does not say what a good answer is" if weights else "is empty"
        raise UserError(f"options.rewards {found}; set at least one other, as in --options.rewards.exact_match.weight 1")
    return weights


class RewardScorer:
    """Owns the process of the user's functions, and the threads of judges."""

    def __init__(self, rewards: Rewards, longest: int) -> None:
        """`longest`: `Options.max_new_tokens`. Raises `UserError` for rewards that cannot be used."""
        self._rewards, self._longest = rewards, longest
        self._threads: ThreadPoolExecutor | None = None
        self._step: int | None = None
        self._late: defaultdict[str, list[RewardError]] = defaultdict(list)
        self._judge = None if rewards.judge is None else JudgeClient(rewards.judge)
        self._schema, schemas = _read_schema(rewards), rewards.json_schema is not None
        self._process = RewardProcess(rewards.functions, rewards.seconds, rewards.memory_gib, self._schema, schemas)
        self.weights = list_weights(rewards)
        """Weight of each reward by its name."""
        if rewards.functions is not None or schemas:
            of_functions = self._process.read_weights()
            if twice := sorted(of_functions.keys() & self.weights.keys()):
                raise UserError(f"options.rewards.functions: {rewards.functions}: {twice[0]} is the name of a built-in reward; rename it")
            self.weights |= of_functions

    def score(self, step: int | None, answers: Sequence[GeneratedText]) -> list[ScoredAnswer]:
        """Return the rewards of each answer. Raises `UserError` for a failed one if `on_failure` is stop. `step`: None in an evaluation;
        the calls that took too long are counted until another one begins."""
        if step != self._step:
            self._step = step
            self._late.clear()
        scored = [ScoredAnswer() for _ in answers]
        for name, weight in self.weights.items():
            values = self._compute_all(name, answers)
            for answer, one, value in zip(answers, scored, values, strict=True):
                if isinstance(value, RewardError):
                    self._count_failure(name, answer, one, value, weight != 0)
                one.rewards[name] = 0.0 if isinstance(value, RewardError) else value
                one.total += weight * one.rewards[name]
                one.shaping += weight * one.rewards[name] * (name == SHAPING)
            failed = [value for value in values if isinstance(value, RewardError)]
            if failed and len(failed) == len(values):
                print_diagnostic(f"warning: all {len(failed)} calls of the reward {name} failed; the first: {failed[0]}")
        for answer, one in zip(answers, scored, strict=True):
            if not abs(one.total) <= LARGEST:  # also NaN
                self._count_failure("total", answer, one, RewardError(f"{one.total:g} is not finite in fp32"), True)
                one.total = one.shaping = 0.0
        return scored

    def _count_failure(self, name: str, answer: GeneratedText, scored: ScoredAnswer, error: RewardError, matters: bool) -> None:
        """Record a failure. `matters`: whether the total depends on it. Raises `UserError` if it ends the run."""
        if self._rewards.on_failure == "stop":
            raise UserError(f"{answer.where}: the reward {name} of {answer.text!r:.60} failed: {error}")
        scored.failures.append(make_safe(f"{name}: {strict_json.one_line(error)}"))  # a file with lone surrogates is not UTF-8
        scored.unknown |= matters and self._rewards.on_failure == "leave_out"

    def close(self) -> None:
        """End the process and the threads."""
        self._process.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _compute_all(self, name: str, answers: Sequence[GeneratedText]) -> list[float | RewardError]:
        late = self._late[name]

        def compute(answer: GeneratedText) -> float | RewardError:
            if len(late) >= MOST_LATE:
                return RewardError(f"not computed, because {MOST_LATE} calls of this step took too long")
            try:
                value = self._compute(name, answer)
            except RewardError as error:
                late.extend([error] * isinstance(error, RewardTimeoutError))
                return error
            return value if abs(value) <= LARGEST else RewardError(f"it returned {value}")

        if name != "judge":
            return list(map(compute, answers))
        self._threads = self._threads or ThreadPoolExecutor(JUDGED_AT_ONCE, thread_name_prefix="judge")
        return list(self._threads.map(compute, answers))

    def _compute(self, name: str, answer: GeneratedText) -> float:
        rewards, row = self._rewards, answer.row
        if name == "exact_match":
            return float(answer.text.strip() == str(row[ANSWER]).strip())
        if name == "numeric_answer":
            assert rewards.numeric_answer is not None
            return answer_checks.match_number(answer.text, row[ANSWER], rewards.numeric_answer.tolerance)
        if name == "regular_expression":
            assert rewards.regular_expression is not None
            return self._process.match_pattern(answer.text, rewards.regular_expression.pattern)
        if name == "json_schema":
            schema = row["schema"] if self._schema is None else self._schema
            return self._process.check_schema(answer.text, schema)
        if name == "length":
            return max(0.0, 1 - answer.tokens / self._longest)
        if name == SHAPING:
            assert rewards.overlong is not None
            return answer_checks.punish_length(answer.tokens, self._longest, rewards.overlong.tokens)
        if name == "judge":
            assert self._judge is not None
            return self._judge.rate(answer.prompt, answer.text, row.get(ANSWER))
        return self._process.call(answer.text, row, name)


def _read_schema(rewards: Rewards) -> Row | None:
    if rewards.json_schema is None or rewards.json_schema.file is None:
        return None
    path = rewards.json_schema.file
    try:
        schema = strict_json.loads_object(input_files.read_bytes(path))
    except (OSError, UserError) as error:
        raise UserError(f"options.rewards.json_schema.file: {path}: {error}") from None
    return schema
