"""The list of folders with uploaded files, and the form that makes one: the same for recordings and for chats."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel
from starlette.routing import Route as Endpoint

from overtone.finetune.pages.request_validation import Route
from overtone.studio.page_interface import Studio, accept_json, answer_form, link_to, require_name
from overtone.studio.uploads.upload_folders import count_files, make_upload_folder


class FolderForm(BaseModel, extra="forbid"):
    """A new folder."""

    name: str


def list_folders(
    studio: Studio, path: str, kind: str, title: str, beginning: str, content: str
) -> tuple[tuple[Route, ...], tuple[Endpoint, ...]]:
    """Return the routes and endpoints of GET `path`, the list, and POST `path/new`, which leads to `path/folder`, the page of the folder.

    `kind`: folder of the folders. `content`: what each of them holds.
    """

    def make(form: FolderForm, _: Mapping[str, str]) -> dict[str, str]:
        folder = make_upload_folder(studio.place, kind, require_name("name", form.name))
        return {"next": link_to("", f"{path}/folder", folder=folder)[0]}

    texts = {"title": title, "beginning": beginning, "content": content, "kind": kind}
    show = Endpoint(path, lambda _: studio.render("folder_list.html", path, folders=count_files(studio.place, kind), **texts))
    return (Route("GET", path), accept_json(f"{path}/new", FolderForm)), (show, answer_form(f"{path}/new", FolderForm, make))
