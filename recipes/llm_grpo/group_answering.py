"""Answers the prompts of a step several times each, scores the answers, and makes samples to train on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from overtone.finetune.data.keyed_permutation import derive_key
from overtone.finetune.recipe import AnswerRecord, Loaded, PromptRow, Rollout, RolloutSettings, Sample
from overtone.finetune.storage.model_security import read_object
from overtone.recipes.language.causal_lm_export_files import GENERATION
from overtone.recipes.language.rollout_generation import GeneratedTokens, RolloutGenerator, RolloutRequest
from overtone.recipes.language.tokenization.stop_tokens import find_stop_ids
from overtone.recipes.llm_grpo.answer_thoughts import has_thoughts, leave_out_thoughts, list_hidden_ids
from overtone.recipes.llm_grpo.options import Options
from overtone.recipes.llm_grpo.prompt_rows import PromptProcessor, decode_row
from overtone.recipes.llm_grpo.rewards.reward_scoring import GeneratedText, RewardScorer, ScoredAnswer
from overtone.recipes.policy.policy_objectives import find_advantages, has_variance
from overtone.recipes.policy.rollout_samples import REWARD, make_lesson, name_metrics


@dataclass(frozen=True)
class ReadAnswer:
    """An answer as text."""

    tokens: GeneratedTokens
    """Not ended either if its thoughts have no end."""
    whole: str
    """With its thoughts."""
    scored: GeneratedText
    """Without them."""


class Lesson(NamedTuple):
    """Numbers by which an answer is trained."""

    advantage: float
    flat: bool
    """True if the group has no variance."""
    replaced: int
    """Number of groups that this one has replaced."""


class GroupAnswering:
    """Implements `RolloutWorker`. Owns a copy of the model, and what computes the rewards."""

    def __init__(self, loaded: Loaded[PromptProcessor], options: Options, settings: RolloutSettings) -> None:
        """Raises `UserError` for rewards that cannot be used."""
        self.slots = options.rollout_batch
        """Implements `RolloutWorker`."""
        self._tokenizer, self._options, self._seed = loaded.processor.tokenizer, options, settings.seed
        configured = loaded.base / GENERATION
        ends = read_object(configured).get("eos_token_id") if configured.is_file() else None
        self._stop_ids = find_stop_ids(self._tokenizer, ends)
        self._generator = RolloutGenerator(
            loaded.base, loaded.buffers, settings.dtype, settings.device, self._stop_ids, options.rollout_batch
        )
        self._scorer = RewardScorer(options.rewards, options.max_new_tokens)
        self._thinks, self._hidden = has_thoughts(self._tokenizer), list_hidden_ids(self._tokenizer)

    def update_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Implements `RolloutWorker`."""
        self._generator.update_weights(weights)

    def answer(self, prompts: Sequence[PromptRow], step: int | None) -> list[Rollout]:
        """Implements `RolloutWorker`: a group of drawn answers to each prompt, or in an evaluation one greedy answer."""
        size = 1 if step is None else self._options.group
        requests = [
            RolloutRequest(
                prompt=prompt.sample["ids"].tolist(),
                seed=derive_key(self._seed, step or 0, prompt.row, prompt.earlier * size + number, *prompt.replaces),
                greedy=step is None,
            )
            for prompt in prompts
            for number in range(size)
        ]
        generated = self._generator.generate(requests, self._options.max_new_tokens)
        answers = [self._read(prompts[number // size], one) for number, one in enumerate(generated)]
        scored = self._scorer.score(step, [answer.scored for answer in answers])
        groups = (slice(start, start + size) for start in range(0, len(answers), size))
        return [self._make_rollout(prompt, answers[part], scored[part], step) for prompt, part in zip(prompts, groups, strict=True)]

    def make_filler(self, prompt: Sample, step: int | None) -> list[Sample]:
        """Implements `RolloutWorker`."""
        token = GeneratedTokens([int(prompt["ids"][-1])], [0.0])
        nothing = ScoredAnswer(dict.fromkeys(self._scorer.weights, 0.0))
        return [self._make_sample(prompt["ids"].tolist(), token, nothing, None if step is None else Lesson(0.0, False, 0))]

    def close(self) -> None:
        """Implements `RolloutWorker`."""
        self._scorer.close()

    def _read(self, prompt: PromptRow, generated: GeneratedTokens) -> ReadAnswer:
        tokens, row = generated.ids[:-1] if generated.ended else generated.ids, decode_row(prompt.sample)
        whole, asked = self._decode([token for token in tokens if token not in self._hidden]), self._decode(prompt.sample["ids"].tolist())
        is_chat = not isinstance(row.get("prompt"), str)
        text = leave_out_thoughts(whole, asked) if self._thinks and is_chat else whole
        scored = GeneratedText(text=text or "", tokens=len(generated.ids), prompt=asked, row=row, where=prompt.where)
        return ReadAnswer(replace(generated, ended=generated.ended and text is not None), whole, scored)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _make_rollout(self, prompt: PromptRow, read: list[ReadAnswer], scored: list[ScoredAnswer], step: int | None) -> Rollout:
        known = [one for one in scored if not one.unknown]
        advantages = find_advantages(self._options.objective, [None if one.unknown else one.total for one in scored])
        flat, replaced = not has_variance([one.total for one in known]), len(prompt.replaces)
        # Length says nothing about right and wrong: in the paper, a group is replaced if all of its answers are right, or all are wrong.
        # A group without any known reward says nothing about its prompt, and that of another prompt would fail for the same reason.
        can_be_replaced = bool(known) and not has_variance([one.total - one.shaping for one in known])
        samples = [
            self._make_sample(
                prompt.sample["ids"].tolist(), answer.tokens, one, None if step is None else Lesson(advantage, flat, replaced)
            )
            for answer, one, advantage in zip(read, scored, advantages, strict=True)
        ]
        answers: list[AnswerRecord] = [
            {
                "text": answer.whole,
                "tokens": answer.scored.tokens,
                "ended": answer.tokens.ended,
                "reward": one.total,
                "rewards": {**one.rewards},
                "failures": [*one.failures],
                "advantage": advantage,
            }
            for answer, one, advantage in zip(read, scored, advantages, strict=True)
        ]
        return Rollout(samples, {"prompt": read[0].scored.prompt, "flat": flat, "answers": answers}, can_be_replaced)

    def _make_sample(self, prompt: list[int], answer: GeneratedTokens, scored: ScoredAnswer, lesson: Lesson | None) -> Sample:
        """`lesson`: None in an evaluation."""
        objective, tokens = self._options.objective, len(answer.ids)
        metrics = {
            REWARD: scored.total,
            **{f"{REWARD}_{name}": value for name, value in scored.rewards.items()},
            "answer_tokens": float(tokens),
            "unfinished": float(not answer.ended),
            "failed_rewards": float(bool(scored.failures)),
        }
        sample = {
            "ids": torch.tensor([*prompt, *answer.ids]),
            "supervised": torch.tensor([False] * len(prompt) + [True] * tokens),
        }
        if lesson is not None:
            metrics["flat_groups"] = float(lesson.flat)
            if self._options.dynamic_sampling:
                metrics["replaced_groups"] = float(lesson.replaced)
            sample |= make_lesson(objective, answer.scores, lesson.advantage, self._options.max_new_tokens, not scored.unknown)
        return sample | name_metrics(metrics)
