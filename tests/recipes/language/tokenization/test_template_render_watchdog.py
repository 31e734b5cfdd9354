"""A template that loops or grows ends with an error, in whatever thread it runs, and never disturbs what comes after it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization import template_render_watchdog
from overtone.recipes.language.tokenization.chat_template import Chat
from overtone.recipes.language.tokenization.template_render_watchdog import RenderLimitError, limit_rendering
from tests.recipes.llm_sft import families

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
GROWTH = "{% set ns = namespace(x='a' * 1000000) %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"


def render(template: str) -> str:
    return Chat([{"role": "user", "content": "hi"}], None, families.tokenizer("chatml"), template).render()


def test_a_template_that_loops_is_ended_in_any_thread_and_then_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_render_watchdog, "SECONDS", 0.3)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(UserError, match=r"cannot render this chat: .*had not ended after 0\.3 s.*set options.chat_template"):
            pool.submit(render, LOOP).result()
        monkeypatch.setattr(template_render_watchdog, "SECONDS", 1e9)  # a second rendering would never end
        with pytest.raises(UserError, match="had not ended"):
            pool.submit(render, LOOP).result()
        assert pool.submit(render, "{{ messages[0].content }}").result() == "hi"


def test_a_template_that_fills_the_memory_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_render_watchdog, "BYTES", 50 * 2**20)
    monkeypatch.setattr(template_render_watchdog, "LOOK_SECONDS", 0.001)
    with pytest.raises(UserError, match="the memory had grown by more than"):
        render(GROWTH)


def test_a_text_of_gigabytes_does_not_reach_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_render_watchdog, "LONGEST_TEXT", 1000)
    with pytest.raises(UserError, match=r"its text has 1,001 characters, at most 1,000 are accepted"):
        render("{{ 'a'|center(1001) }}")
    assert len(render("{{ 'a'|center(1000) }}")) == 1000


def test_an_exception_that_came_too_late_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rendering ends at the moment at which it would be ended."""
    render("warm")
    for _ in range(20):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(RenderLimitError), limit_rendering(f"{time.monotonic()}"):
            patch.setattr(template_render_watchdog, "SECONDS", -1.0)
            while True:
                pass
        assert sum(range(1000)) == 499500


def test_a_forked_process_has_a_watch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    render("warm")
    monkeypatch.setattr(template_render_watchdog, "SECONDS", 0.2)
    if not (child := os.fork()):
        try:
            render(LOOP + "{# in a fork #}")
        except UserError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
