"""Gradio page of `overtone review`: plays one clip at a time; each decision is on disk before the next clip is shown."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import TYPE_CHECKING, Literal

from overtone.data_prep.clips import review_decisions
from overtone.data_prep.clips.review_decisions import Action, Decision
from overtone.data_prep.pages.quality_rule_effects import Weakness
from overtone.data_prep.pages.rejection_advice import explain_reason
from overtone.data_prep.pages.review_queue import (
    ALL,
    ORDERS,
    WORST,
    ReviewQueue,
    build_queue,
    list_views,
    make_decision,
    move_selection,
    select_clips,
)
from overtone.data_prep.pages.voice_dataset_loader import Dataset, ReportClip, resolve_clip
from overtone.finetune.errors import UserError
from overtone.finetune.pages.jinja_environment import format_identifier, format_number

if TYPE_CHECKING:
    import gradio

SHOWN = (
    ("snr_db", "signal to noise", "dB"),
    ("loudness_lufs", "loudness", "LUFS"),
    ("chars_per_second", "speaking rate", "characters/s"),
    ("pitch_hz", "pitch", "Hz"),
    ("bandwidth_hz", "bandwidth", "Hz"),
    ("peak_dbfs", "peak", "dBFS"),
    ("speech_share", "speech", "of the clip"),
    ("avg_logprob", "mean log-probability", ""),
    ("alignment_score", "alignment", "nats/frame above the limit"),
    ("check_wer", "WER of the check", ""),
)
"""(field of `Quality`, label, unit)."""
DECIDING: tuple[tuple[Action, str, Literal["primary", "secondary"]], ...] = (
    ("reject", "Reject (R)", "secondary"),
    ("text", "Save text (Ctrl+Enter)", "secondary"),
    ("keep", "Keep (K)", "primary"),
)
HINT = (
    "Decisions apply from the next run of `overtone voice`. Keep overrides the quality rules; a clip with a saved text is "
    "checked again with that text. Space plays; the arrow keys go to the next and previous clip."
)


class ReviewSession:
    """Owns review.jsonl while the page is open. Its methods handle the page's events and return the values of its components."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.decisions, self.queue = dataset, review_decisions.read_decisions(dataset.folder), build_queue(dataset)

    def select_clips(self, view: str | None, order: str | None, search: str | None) -> list[list[str] | str | None]:
        """Filter and sort the clips; returns their ids, then the components for the first clip. A cleared control sends None."""
        ids = select_clips(self.queue, self.decisions, view or ALL, order or WORST, search or "")
        return [ids, *self.show_clip(ids, ids[0] if ids else "")]

    def move(self, steps: int, ids: list[str], id: str) -> list[str | None]:
        """Show the clip that is `steps` after the current one, or before it if `steps` is negative."""
        return self.show_clip(ids, move_selection(ids, id, steps))

    def save_decision(self, action: Action, ids: list[str], id: str, text: str | None, note: str | None) -> list[str | None]:
        """Save a decision and show the next clip. `id` and `text` come from the same browser event, so two clips cannot be mixed up."""
        from gradio import Error  # shown as a message on the page

        try:
            decision = make_decision(self.queue.clips[id], self.decisions.get(id), action, text or "", note or "")
            review_decisions.append_decision(self.dataset.folder, decision)
        except (KeyError, UserError) as error:
            raise Error(f"decision not saved: {error}", print_exception=False) from error
        self.decisions.pop(id, None)
        if action != "undo":
            self.decisions[id] = decision
        return self.show_clip(ids, id if action == "undo" else move_selection(ids, id, 1))

    def show_clip(self, ids: list[str], id: str) -> list[str | None]:
        """Return the component values: id, audio, text, note, facts, position in the list."""
        if id not in self.queue.clips:
            return ["", None, "", "", "<p>No matching clips.</p>", "0 of 0"]
        clip, decision = self.queue.clips[id], self.decisions.get(id)
        text = decision.text if decision and decision.text else clip.text
        place = f"{ids.index(id) + 1 if id in ids else '–'} of {len(ids)}"
        return [
            id,
            str(resolve_clip(self.dataset, clip)),
            text,
            (decision.note if decision else "") or "",
            format_facts(self.queue, clip, decision),
            place,
        ]


def build_page(session: ReviewSession) -> gradio.Blocks:
    """Return the Gradio page, without a server."""
    import gradio

    with gradio.Blocks(title=f"{session.dataset.folder.resolve().name} · review", analytics_enabled=False) as page:
        ids, id = gradio.State([]), gradio.Textbox(visible=False)
        with gradio.Row():
            view = gradio.Dropdown(list_views(session.queue), value=ALL, label="Show", filterable=False)
            order = gradio.Dropdown(list(ORDERS), value=WORST, label="Order", filterable=False)
            search = gradio.Textbox(label="Search text, recording, speaker, id", placeholder="type a word, press Enter")
        place = gradio.Markdown("")
        waves = gradio.WaveformOptions(waveform_color="#a8a59a", waveform_progress_color="#2c8a80")
        player = gradio.Audio(label="Clip", interactive=False, autoplay=True, elem_id="player", buttons=[], waveform_options=waves)
        text = gradio.Textbox(label="Transcript", lines=2, elem_id="said")
        with gradio.Row():
            buttons = {action: gradio.Button(label, variant=kind, size="md", elem_id=action) for action, label, kind in DECIDING}
        with gradio.Row():
            previous = gradio.Button("← Previous", size="sm", elem_id="previous")
            buttons["undo"] = gradio.Button("Undo (U)", size="sm", elem_id="undo")
            following = gradio.Button("Next →", size="sm", elem_id="next")
        about = gradio.HTML("")
        note = gradio.Textbox(label="Note", placeholder="optional, for yourself", lines=1)
        gradio.Markdown(HINT)
        shown = [id, player, text, note, about, place]

        triggers = [page.load, view.change, order.change, search.submit]
        gradio.on(triggers, session.select_clips, [view, order, search], [ids, *shown], api_name="choose")
        following.click(partial(session.move, 1), [ids, id], shown, api_name="next")
        previous.click(partial(session.move, -1), [ids, id], shown, api_name="previous")
        for action, button in buttons.items():  # one at a time: concurrent writers would corrupt lines of the file
            button.click(partial(session.save_decision, action), [ids, id, text, note], shown, api_name=action, concurrency_id="writing")
    return page


def format_facts(queue: ReviewQueue, clip: ReportClip, decision: Decision | None) -> str:
    """Return the HTML with the clip's status, rejection reasons and measures. All text from files is escaped."""
    states = [
        f'<span class="state lost" title="{escape(explain_reason(reason))}">{escape(format_identifier(reason))}</span>'
        for reason in clip.reasons
    ]
    if not states:
        states = [f'<span class="state kept">kept: {escape(clip.stage)}</span>']
    if decision is not None:
        states.append(f'<span class="state mine">your decision: {escape(decision.action)}</span>')
    weakness = queue.weaknesses.get(clip.id)
    weakest = f"<p>{escape(_format_weakness(weakness))}</p>" if weakness else ""
    where = f"<p>{escape(clip.speaker)} · {escape(clip.source)} at {clip.start:.1f} s · {clip.seconds:.1f} s · {escape(clip.id)}</p>"
    measures = [(name, getattr(clip.quality, field, None), unit) for field, name, unit in SHOWN]
    terms = "".join(
        f"<div><dt>{name}</dt><dd>{format_number(value)} {unit}</dd></div>" for name, value, unit in measures if value is not None
    )
    return f'<div class="facts">{"".join(states)}{weakest}{where}<dl>{terms}</dl></div>'


def _format_weakness(weakness: Weakness) -> str:
    rule, value, limit = weakness.rule, format_number(weakness.value), format_number(weakness.limit)
    return f"Weakest measure: {format_identifier(rule.reason)}, {value} {rule.unit}; limit {limit}"
