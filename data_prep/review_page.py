"""The page of `review`: one clip at a time, to hear, to read, to decide. Every decision is on the disk before the next clip shows."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from data_prep import decisions
from data_prep.decisions import Action, Decision
from data_prep.report_advice import explain
from data_prep.report_charts import number
from data_prep.report_clips import Clip, Dataset, path_of
from data_prep.report_parts import plain
from data_prep.report_rules import Weakness
from data_prep.review_queue import ALL, ORDERS, WORST, Queue, after, decide, queue_of, select, views
from finetune.errors import UserError

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
)
"""Field of `Quality`, its name, its unit."""
DECIDING: tuple[tuple[Action, str, Literal["primary", "secondary"]], ...] = (
    ("reject", "Reject (R)", "secondary"),
    ("text", "Save text (Ctrl+Enter)", "secondary"),
    ("keep", "Keep (K)", "primary"),
)
HINT = (
    "Decisions hold from the next run of `python -m data_prep voice` on. A kept clip is used whatever the rules say; one with a saved text "
    "is judged anew. Space plays, and the arrows go on and back."
)


class Desk:
    """Owns the file of decisions while the page is open; its methods answer the page's buttons with what shows a clip."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.made, self.queue = dataset, decisions.read(dataset.folder), queue_of(dataset)

    def choose(self, view: str | None, order: str | None, search: str | None) -> list[Any]:
        """The ids that are selected, and the first of them. A control that was cleared sends None."""
        ids = select(self.queue, self.made, view or ALL, order or WORST, search or "")
        return [ids, *self.show(ids, ids[0] if ids else "")]

    def go(self, steps: int, ids: list[str], id: str) -> list[Any]:
        """Forwards or back."""
        return self.show(ids, after(ids, id, steps))

    def settle(self, action: Action, ids: list[str], id: str, text: str | None, note: str | None) -> list[Any]:
        """Write a decision down and go on. `id` and `text` come from the browser together: a quick hand must not mix two clips."""
        from gradio import Error  # what a page shows as a message

        try:
            decision = decide(self.queue.clips[id], self.made.get(id), action, text or "", note or "")
        except (KeyError, UserError) as error:
            raise Error(f"nothing was written: {error}", print_exception=False) from error
        decisions.add(self.dataset.folder, decision)
        self.made.pop(id, None)
        if action != "undo":
            self.made[id] = decision
        return self.show(ids, id if action == "undo" else after(ids, id, 1))

    def show(self, ids: list[str], id: str) -> list[Any]:
        """Id, sound, text, note, facts, place in the list."""
        if id not in self.queue.clips:
            return ["", None, "", "", "<p>No clip is like that.</p>", "0 of 0"]
        clip, decision = self.queue.clips[id], self.made.get(id)
        text = decision.text if decision and decision.text else clip.text
        place = f"{ids.index(id) + 1 if id in ids else '–'} of {len(ids)}"
        return [
            id,
            str(path_of(self.dataset, clip)),
            text,
            (decision.note if decision else "") or "",
            facts(self.queue, clip, decision),
            place,
        ]


def build(desk: Desk) -> gradio.Blocks:
    """The page without its server."""
    import gradio

    with gradio.Blocks(title=f"{desk.dataset.folder.resolve().name} · review", analytics_enabled=False) as page:
        ids, id = gradio.State([]), gradio.Textbox(visible=False)
        with gradio.Row():
            view = gradio.Dropdown(views(desk.queue), value=ALL, label="Show", filterable=False)
            order = gradio.Dropdown(list(ORDERS), value=WORST, label="Order", filterable=False)
            search = gradio.Textbox(label="Search text, recording, speaker, id", placeholder="a word, then Enter")
        place = gradio.Markdown("")
        waves = gradio.WaveformOptions(waveform_color="#a8a59a", waveform_progress_color="#2c8a80")
        player = gradio.Audio(label="Clip", interactive=False, autoplay=True, elem_id="player", buttons=[], waveform_options=waves)
        text = gradio.Textbox(label="What is said", lines=2, elem_id="said")
        with gradio.Row():
            buttons = {action: gradio.Button(label, variant=kind, size="md", elem_id=action) for action, label, kind in DECIDING}
        with gradio.Row():
            previous = gradio.Button("← Previous", size="sm", elem_id="previous")
            buttons["undo"] = gradio.Button("Undo (U)", size="sm", elem_id="undo")
            following = gradio.Button("Next →", size="sm", elem_id="next")
        about = gradio.HTML("")
        note = gradio.Textbox(label="Note", placeholder="for yourself", lines=1)
        gradio.Markdown(HINT)
        shown = [id, player, text, note, about, place]

        asked = [page.load, view.change, order.change, search.submit]
        gradio.on(asked, desk.choose, [view, order, search], [ids, *shown], api_name="choose")
        following.click(partial(desk.go, 1), [ids, id], shown, api_name="next")
        previous.click(partial(desk.go, -1), [ids, id], shown, api_name="previous")
        for action, button in buttons.items():  # one at a time: two writers would tear lines of the file
            button.click(partial(desk.settle, action), [ids, id, text, note], shown, api_name=action, concurrency_id="writing")
    return page


def facts(queue: Queue, clip: Clip, decision: Decision | None) -> str:
    """HTML: what became of the clip and why, and what it measures. Everything from outside is escaped."""
    states = [f'<span class="state lost" title="{escape(explain(reason))}">{escape(plain(reason))}</span>' for reason in clip.reasons]
    if not states:
        states = [f'<span class="state kept">kept: {escape(clip.stage)}</span>']
    if decision is not None:
        states.append(f'<span class="state mine">your decision: {escape(decision.action)}</span>')
    weakness = queue.weaknesses.get(clip.id)
    weakest = f"<p>{escape(_weakest(weakness))}</p>" if weakness else ""
    where = f"<p>{escape(clip.speaker)} · {escape(clip.source)} at {clip.start:.1f} s · {clip.seconds:.1f} s · {escape(clip.id)}</p>"
    measures = [(name, getattr(clip.quality, field, None), unit) for field, name, unit in SHOWN]
    terms = "".join(f"<div><dt>{name}</dt><dd>{number(value)} {unit}</dd></div>" for name, value, unit in measures if value is not None)
    return f'<div class="facts">{"".join(states)}{weakest}{where}<dl>{terms}</dl></div>'


def _weakest(weakness: Weakness) -> str:
    rule, value, limit = weakness.rule, number(weakness.value), number(weakness.limit)
    return f"Weakest measure: {plain(rule.reason)}, {value} {rule.unit}; limit {limit}"
