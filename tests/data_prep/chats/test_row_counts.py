"""Every row is counted exactly once, and everything that is not used is reported."""

from __future__ import annotations

from collections import Counter

from overtone.data_prep.chats.row_counts import REJECTED, SHOWN, TRAINS, VALIDATES, RowCounts, UnreadKeys, format_summary, make_summary


def account(tally: RowCounts, **passed_over: int) -> str:
    return format_summary(make_summary(tally, Counter(passed_over), 0.02, None))


def test_a_repeated_row_is_detected_in_any_key_order() -> None:
    tally, row = RowCounts(), {"prompt": "a", "completion": "b"}
    assert tally.find_earlier(row, "a.jsonl:1") is None
    assert tally.find_earlier({"completion": "b", "prompt": "a"}, "a.jsonl:1") == "a.jsonl:1", "the same place makes no other row of it"
    assert tally.find_earlier({**row, "tools": [{}]}, "a.jsonl:2") is None


def test_reasons_that_differ_only_by_their_row_are_counted_together() -> None:
    tally = RowCounts()
    for place in ("a:1", "a:2"):
        tally.count_rejected(place, f"messages[{place[-1]}] must be an object, found {place!r}")
        tally.count_rejected(place, f"the same as {place}")
        tally.count_rejected(place, f"no known shape (messages: messages); its keys are {place}\n\ud83d")
    assert tally.reasons == {"messages[N] must be an object": 2, "the same as another": 2, "no known shape (messages: messages)": 2}
    assert tally.rejects[2] == {"source": "a:1", "reason": "no known shape (messages: messages); its keys are a:1 \\ud83d"}


def test_everything_that_is_not_used_is_reported() -> None:
    tally = RowCounts(kinds=bytearray([TRAINS, TRAINS, VALIDATES, REJECTED]), by_source=Counter({"a.jsonl": 4, "b.jsonl": 0}))
    tally.count_kept("messages", UnreadKeys(["id", "a\nname"], ["mood", "mood", "t"]), tidied=True, joined=0, unlearned=0)
    tally.count_kept("messages", UnreadKeys(["id"], ["t"]), tidied=False, joined=0, unlearned=0)
    tally.count_rejected("a.jsonl:4", "an empty completion")
    assert account(tally, **{".txt": 3}).splitlines() == [
        "4 rows read (2 messages): 2 to train on, 1 to validate on, 1 rejected",
        "  from a.jsonl (4), b.jsonl (0)",
        "  sources without rows: b.jsonl",
        "  skipped: 3 .txt",
        "  rejected 1: an empty completion (a.jsonl:4)",
        "  rejects.jsonl lists each rejected row with its location and reason",
        "  unused keys, dropped: id (2 rows), a name (1 row)",
        "  keys of messages that only a chat template which names them reads: t (2 rows), mood (1 row)",
        "  leading line breaks removed from answers in 1 row",
    ]


def test_invisible_characters_are_counted() -> None:
    tally = RowCounts()
    tally.invisible.update({"soft hyphens": 3})
    assert "rows with invisible characters, which stay as they are: 3 soft hyphens" in account(tally)


def test_long_lists_are_shortened_on_screen_and_complete_in_the_file() -> None:
    tally = RowCounts(by_source=Counter({f"{number}.jsonl": 1 for number in range(40)}))
    for number in range(40):
        tally.count_rejected("a", "x" * (number + 1))
    tally.count_kept("messages", UnreadKeys([f"key{number}" for number in range(40)], []), tidied=False, joined=0, unlearned=0)
    said = account(tally)
    assert said.count("and 28 more") == 3 and "and 28 more reasons" in said and len(said.splitlines()) == SHOWN + 6
    whole = make_summary(tally, Counter(), 0.02, None)
    assert [len(whole.as_json()[part]) for part in ("sources", "reasons", "keys_left_out")] == [40, 40, 40]
