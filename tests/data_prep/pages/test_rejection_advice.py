"""Every possible reason of a rejection has an explanation and advice."""

from __future__ import annotations

import re
from pathlib import Path

import overtone.data_prep
from overtone.data_prep.clips.quality_rules import PRESETS
from overtone.data_prep.pages.rejection_advice import ADVICE, explain_reason

FOLDER = Path(overtone.data_prep.__file__).parent


def test_every_rule_has_a_meaning_and_advice() -> None:
    reasons = {rule.reason for rules in PRESETS.values() for rule in rules}
    assert len(reasons) >= 15
    assert not [reason for reason in sorted(reasons) if not explain_reason(reason) or reason not in ADVICE]


def test_every_other_reason_has_advice() -> None:
    sources = [path.read_text() for path in sorted(FOLDER.rglob("*.py"))]
    given = r'AudioError\(\s*"([a-z_]+)"|reasons=\["([a-z_]+)"\]|refused="([a-z_]+)"|refused\([\w.]+, "([a-z_]+)"'
    reasons = {next(filter(None, found)) for source in sources for found in re.findall(given, source)}
    assert len(reasons) >= 3 and "unreadable" in reasons
    assert not [reason for reason in sorted(reasons) if reason not in ADVICE or not explain_reason(reason)]


def test_an_unknown_reason_has_no_explanation() -> None:
    assert explain_reason("my_own_rule") == ""
