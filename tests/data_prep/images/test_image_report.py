"""The report shows labels, conflicts and rejects, and loads nothing."""

from __future__ import annotations

import re
from pathlib import Path

from overtone.data_prep.images.image_dataset_writer import make_summary
from overtone.data_prep.images.image_examination import examine_images
from overtone.data_prep.images.image_report import PER_LABEL, render_report
from overtone.data_prep.images.image_selection import select_images
from overtone.data_prep.images.image_sources import FoundImage
from tests.data_prep.images.test_image_decoding import encode
from tests.data_prep.images.test_perceptual_hash import draw


def test_the_page_shows_what_was_decided_and_escapes_names(tmp_path: Path) -> None:
    found = [
        FoundImage(f"{label}/{number}.png", encode(draw(number + 100 * place)), label)
        for place, label in enumerate(("<b>cat", "dog"))
        for number in range(10)
    ]
    found += [FoundImage("dog/wrong.png", found[0].content, "dog"), FoundImage("x/<i>.png", b"broken", "dog")]
    dataset = select_images(list(examine_images(found, tmp_path)), 0.2)
    summary = make_summary(dataset, {"source": "photos"})
    page = render_report(dataset, summary, tmp_path)
    assert page == render_report(dataset, summary, tmp_path)
    assert "<b>cat" not in page and "&lt;b&gt;cat" in page and "&lt;i&gt;.png" in page
    assert "19 of 22 images kept, with 2 labels" in page and "The same image under several labels" in page
    pictures = re.findall(r'<img src="(data:image/png;base64,[^"]+)" width="(\d+)"', page)
    assert len(pictures) == 2 * PER_LABEL + 2 and {width for _, width in pictures} == {"96"}
    assert "default-src 'none'" in page and not re.search(r'(src|href)="(?!data:|#)', page)
