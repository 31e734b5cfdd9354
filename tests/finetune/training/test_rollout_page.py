"""The page of the newest rollouts: hostile texts are escaped, and nothing is fetched."""

from __future__ import annotations

from overtone.finetune.recipe import LoggedRollout
from overtone.finetune.training.rollout_page import MOST_PROMPTS, render_page

HOSTILE = "<script>alert(1)</script>\x00<img src=http://example.invalid/x>"


def make_record(step: int, row: str, text: str, rewards: tuple[float, float]) -> LoggedRollout:
    return {
        "step": step, "row": row, "replaces": [], "prompt": f"prompt {text}", "flat": rewards[0] == rewards[1],
        "answers": [
            {"text": text, "tokens": 3, "ended": reward > 0, "reward": reward, "rewards": {"exact_match": reward},
             "failures": [text], "advantage": 0.0}
            for reward in rewards
        ],
    }  # fmt: skip


def test_texts_are_escaped() -> None:
    page = render_page(HOSTILE, [[make_record(3, HOSTILE, HOSTILE, (1.0, 0.0))]])
    assert "<script" not in page and "<img" not in page and page.count("&lt;script&gt;") >= 6
    assert "default-src 'none'" in page and "(cut off)" in page


def test_steps_are_summarized_and_long_ones_are_cut() -> None:
    many = [make_record(7, f"rows.jsonl:{number}", f"text {number}", (1.0, 1.0)) for number in range(MOST_PROMPTS + 2)]
    page = render_page("run", [many, [make_record(6, "rows.jsonl:1", "older", (1.0, 0.0))]])
    assert "Mean reward 1 over 36 answers; 18 of 18 groups have no variance. 2 more prompts are in rollouts.jsonl." in page
    assert f"text {MOST_PROMPTS - 1}<" in page and f"text {MOST_PROMPTS}<" not in page
    assert page.index("Step 7") < page.index("Step 6") and "Mean reward 0.5 over 2 answers; 0 of 1 groups" in page


def test_a_replacement_names_what_it_replaces() -> None:
    page = render_page("run", [[{**make_record(3, "a:1", "text", (1.0, 0.0)), "replaces": ["a:2", f"{HOSTILE}:3"]}]])
    assert "In the place of a:2, &lt;script&gt;" in page and "whose answers teach nothing" in page and "<script" not in page
    assert "In the place of" not in render_page("run", [[make_record(3, "a:1", "text", (1.0, 0.0))]])


def test_a_launch_without_rollouts_has_an_empty_page() -> None:
    assert "<h2" not in render_page("run", [])
