"""The page of `overtone review`: shows one clip at a time; each decision is on disk before the next clip is shown."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from overtone.data_prep.clips import review_decisions
from overtone.data_prep.clips.review_decisions import Action
from overtone.data_prep.pages.rejection_advice import explain_reason
from overtone.data_prep.pages.review_queue import ALL, ORDERS, WORST, build_queue, list_views, make_decision, select_clips
from overtone.data_prep.pages.voice_dataset_loader import Dataset
from overtone.finetune.errors import UserError
from overtone.finetune.pages.jinja_environment import make_environment

FOLDER = Path(__file__).parent
LONGEST_SEARCH = 200
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


class DecisionCall(BaseModel):
    """A decision as the page sends it. The id and the text come from the same moment, so two clips cannot be mixed up."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: str
    action: Action
    text: str
    note: str


class ClipView(BaseModel):
    """Values that the page shows for a clip."""

    id: str
    text: str
    note: str
    facts: str
    """HTML in which all texts are escaped."""


class ReviewSession:
    """Owns review.jsonl while the server runs. Must be used by a single thread: concurrent writers would corrupt lines of the file."""

    def __init__(self, dataset: Dataset, back: str = "") -> None:
        """Read the decisions of a dataset. `back`: address of the page that leads here; empty for none."""
        self.back = back
        self.dataset, self.decisions, self.queue = dataset, review_decisions.read_decisions(dataset.folder), build_queue(dataset)
        self._templates = make_environment(FOLDER)
        self._templates.filters["advice"] = explain_reason

    def render_page(self, view: str = ALL, order: str = WORST, search: str = "") -> str:
        """Return the page with the first of the clips in a view."""
        ids = select_clips(self.queue, self.decisions, view, order, search)
        first = self.show_clip(ids[0] if ids else None)
        address = quote(first.id, safe="")
        return self._templates.get_template("review_page.html").render(
            name=self.dataset.folder.resolve().name,
            back=self.back,
            views=list_views(self.queue),
            view=view,
            orders=ORDERS,
            order=order,
            search=search,
            longest_search=LONGEST_SEARCH,
            ids=ids,
            clip=first,
            place=f"1 of {len(ids)}" if ids else "0 of 0",
            sound=f"sound?id={address}" if ids else "",
            picture=f"picture?id={address}" if ids else "",
        )

    def show_clip(self, id: str | None) -> ClipView:
        """Return what the page shows of a clip; None for a list without clips. Raises `KeyError` for an unknown one."""
        clip, decision = (None, None) if id is None else (self.queue.clips[id], self.decisions.get(id))
        measures = [(name, getattr(clip.quality, field, None), unit) for field, name, unit in SHOWN] if clip else []
        facts = self._templates.get_template("review_facts.html").render(
            clip=clip,
            decision=decision,
            weakness=self.queue.weaknesses.get(id or ""),
            measures=[one for one in measures if one[1] is not None],
        )
        text = (decision.text if decision else None) or (clip.text if clip else "")
        return ClipView(id=id or "", text=text, note=(decision.note if decision else None) or "", facts=facts)

    def save_decision(self, call: DecisionCall) -> None:
        """Write a decision. Raises `KeyError` for an unknown clip, `UserError` for one without a text or a file that cannot be written."""
        decision = make_decision(self.queue.clips[call.id], self.decisions.get(call.id), call.action, call.text, call.note)
        try:
            review_decisions.append_decision(self.dataset.folder, decision)
        except OSError as error:
            path = self.dataset.folder / review_decisions.REVIEW
            raise UserError(f"{path} cannot be written ({error.strerror or error}); check its permissions, then decide again") from error
        self.decisions.pop(call.id, None)
        if call.action != "undo":
            self.decisions[call.id] = decision
