"""The pages of the studio, in the order of the navigation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from overtone.studio.page_interface import Page, Studio
from overtone.studio.pages import (
    chat_dataset,
    chat_page,
    choose_page,
    dataset_report,
    dataset_review,
    file_upload,
    home_page,
    job_page,
    microphone_page,
    run_page,
    train_page,
    use_page,
    voice_dataset,
    voice_page,
)

PAGES: Sequence[Callable[[Studio], Page]] = (
    home_page.make_page,
    job_page.make_page,
    voice_page.make_page,
    microphone_page.make_page,
    voice_dataset.make_page,
    chat_page.make_page,
    chat_dataset.make_page,
    dataset_review.make_page,
    dataset_report.make_page,
    file_upload.make_page,
    train_page.make_page,
    run_page.make_page,
    choose_page.make_page,
    use_page.make_page,
)
"""The functions that make the pages."""
