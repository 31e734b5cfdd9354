"""Shows pages that verbs wrote (reports of datasets, selections, evaluations) without trusting them: a folder may come from anywhere."""

from __future__ import annotations

import base64
import hashlib
import os

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from overtone.data_prep.cli.report import PAGE as REPORT
from overtone.data_prep.pages.report_page import FOLDER as REPORTS
from overtone.finetune.pages.request_validation import RequestError, Route
from overtone.finetune.storage import folder_handles, input_files
from overtone.studio.folder_content import find_inside
from overtone.studio.page_interface import UNSTORED, Page, Studio, is_short, link_to

LARGEST = 2**28
SELECTION, EVALUATION = "selection.html", "evaluation.html"
WRITTEN = (REPORT, SELECTION, EVALUATION)
"""Names of the pages that verbs write."""


def make_page(studio: Studio) -> Page:
    """Return the page."""
    script = input_files.read_text(REPORTS / "report_page.js")
    policy = make_policy(script)

    def show(request: Request) -> Response:
        name = request.query_params.get("folder", "")
        file = request.query_params.get("page", REPORT)
        path = find_inside(studio.place, name) / file
        try:
            with os.fdopen(folder_handles.open_file(path, os.O_RDONLY), "rb") as opened:
                content = opened.read(LARGEST + 1)
        except OSError as error:
            raise RequestError(404, f"{name} has no {file}; make it first", "no_report") from error
        if len(content) > LARGEST:
            raise RequestError(400, f"{name}/{file} has more than {LARGEST} bytes; open it in a browser as a file", "too_large")
        return Response(content, media_type="text/html", headers={**UNSTORED, "content-security-policy": policy})

    return Page(
        routes=(Route("GET", "/report", query={"folder": is_short, "page": WRITTEN.__contains__}),),
        endpoints=(Endpoint("/report", show),),
        job_links=lambda job: (
            [link_to("Show the report", "/report", folder=job.command.words[0])]
            if job.command.verb == "report" and job.command.words and "--out" not in job.command.words
            else []
        ),
    )


def make_policy(script: str) -> str:
    """Return the policy of a report: no request, no form, no access to the studio's pages, and no other script than that of reports."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"sandbox allow-scripts; default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
