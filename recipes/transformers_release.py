"""Checks for what an installed transformers 4 lacks, for recipes whose home is transformers 5."""

from __future__ import annotations

from importlib.metadata import version

ENVIRONMENT = "python3.11 -m venv .venv-chat && .venv-chat/bin/pip install -c constraints-chat.txt -e '.[text,liger]'"
"""Makes an environment with transformers 5, in a checkout."""


def is_old(installed: str) -> bool:
    """Return whether a version is one of transformers 4."""
    return int(installed.partition(".")[0]) < 5


def name_release() -> str:
    """The installed release, for messages about a model that it does not know."""
    installed = version("transformers")
    more = " (transformers 5 knows more; README.md says how to install it)" if is_old(installed) else ""
    return f"transformers {installed}{more}"


def describe_old_release() -> tuple[str, ...]:
    """One sentence for the log about what an installed transformers 4 lacks, with the command for an environment with transformers 5; empty
    with transformers 5."""
    installed = version("transformers")
    if not is_old(installed):
        return ()
    return (
        f"transformers {installed}, which Qwen3-TTS needs, lacks grouped experts, newer architectures and the fixes of CVE-2026-4372 and "
        f"CVE-2026-5241 (the checks of model folders contain both, see SECURITY.md); with transformers 5: {ENVIRONMENT}",
    )
