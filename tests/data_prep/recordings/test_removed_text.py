"""Counts and examples of what is removed from texts."""

from __future__ import annotations

from overtone.data_prep.recordings.removed_text import RemovedText, format_removals


def test_removals_are_counted_with_different_examples() -> None:
    removed = RemovedText()
    for example in ("[a]", "[a]", "[b]", "[c]", "[d]"):
        removed.add("tags", example)
    removed.add("emoji", count=7)
    removed.add("long", "word " * 50)
    kinds = removed.list_kinds()
    assert [(kind, one.count) for kind, one in kinds.items()] == [("emoji", 7), ("tags", 5), ("long", 1)]
    assert kinds["tags"].examples == ("[a]", "[b]", "[c]") and len(kinds["long"].examples[0]) == 60
    assert format_removals({"tags": kinds["tags"], "emoji": kinds["emoji"]}) == "5 tags ([a], [b], [c]); 7 emoji"
