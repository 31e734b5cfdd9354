"""Addresses of remote files, and texts that quote them, without their secrets: user names, passwords, and queries such as signatures."""

from __future__ import annotations

import re
from typing import TypeGuard

HIDDEN = "***"
"""Replacement of hidden text."""
URL = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.DOTALL | re.IGNORECASE)
LINK = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*:/{1,2})(?P<place>.*?)(?P<query>\?.*|\#[^?]*=.*)?", re.DOTALL | re.IGNORECASE)
"""One link of a chain such as `zip://a.jsonl::https://host/b.zip?signature`. One slash: as `Path` prints it."""
QUOTED = re.compile(r"\b[a-z][a-z0-9+.-]*:/{1,2}[^\s/'\"<>`][^\s'\"<>`]*", re.IGNORECASE)
"""An address in a text."""
PARAMETER = re.compile(r"(?i)([?&](?:[\w-]*(?:signature|credential|token|secret|password|key)|sig)=)[^\s&'\"<>`]+")
"""A secret in an address without its beginning, as clients quote it in their errors."""
CHAIN = re.compile(r"::(?=[a-z][a-z0-9+.-]*:[/:])", re.IGNORECASE)
"""Separator between two links; the colons of an IPv6 host are none."""
LOCAL = frozenset({"file", "local"})
"""Schemes whose addresses are paths, in which `?` and `@` are letters."""
WITHOUT_USERS = frozenset({"hf", "github", "abfs", "abfss", "wasb", "wasbs"})
"""Schemes that write a branch, a repository or a container before an `@`."""


class RemoteAddress(str):
    """The address of a remote file or folder. As a string, it has no secrets: it is printed, saved, compared and hashed without them.

    Two presigned addresses of one file are thus equal. An address that was saved needs its secrets again before it can be read.
    """

    with_secrets: str
    """The address as it was given; only for the request itself."""

    def __new__(cls, text: str) -> RemoteAddress:
        given = text.with_secrets if isinstance(text, RemoteAddress) else text
        address = super().__new__(cls, hide_address(given))
        address.with_secrets = given
        return address

    def __getnewargs__(self) -> tuple[str]:  # copies, and the parameters of worker processes, keep the secrets
        return (self.with_secrets,)

    @property
    def lacks_secrets(self) -> bool:
        """True if it was read from a place that stores no secrets."""
        return HIDDEN in self.with_secrets

    @property
    def name(self) -> str:
        """The last part of the path."""
        return RemoteAddress(str(self))._split()[1].rstrip("/").rpartition("/")[2].removeprefix(f"{HIDDEN}@")

    @property
    def parent(self) -> RemoteAddress:
        """The folder that contains it, with the same secrets."""
        scheme, place, rest = self._split()
        return RemoteAddress(f"{scheme}{place.rstrip('/').rpartition('/')[0]}{rest}")

    def child(self, name: str) -> RemoteAddress:
        """Return the address of a file in this folder, with the same secrets."""
        scheme, place, rest = self._split()
        return RemoteAddress(f"{scheme}{place.rstrip('/')}/{name}{rest}" if place else f"{scheme}{name}{rest}")

    def hide_in(self, text: object) -> str:
        """Return a text, such as the error of a client, without the secrets of this address and of others."""
        plain = str(text).replace(self.with_secrets, self)
        for link in CHAIN.split(self.with_secrets):
            found = LINK.fullmatch(link)
            query = (found["query"] or "")[1:] if found and hide_address(link) != link else ""
            values = [part.partition("=")[2] for part in query.split("&")]
            for secret in sorted({query, *values, *_find_user(link)}, key=len, reverse=True):
                plain = plain.replace(secret, HIDDEN) if len(secret) > 3 else plain
        return hide_secrets(plain)

    def _split(self) -> tuple[str, str, str]:
        """The scheme, the path, and what follows the path: the query and the further links of a chain."""
        link, *others = CHAIN.split(self.with_secrets, maxsplit=1)
        chain = "".join(f"::{other}" for other in others)
        found = LINK.fullmatch(link)
        if found is None:
            return "", link, chain
        is_path = _name_scheme(found["scheme"]) in LOCAL
        query = found["query"] or ""
        return found["scheme"], found["place"] + query * is_path, query * (not is_path) + chain


def is_url(place: object) -> TypeGuard[str]:
    return isinstance(place, str) and URL.fullmatch(place) is not None


def looks_like_url(place: object) -> bool:
    """Return whether a path or text begins as a URL, also with a single slash, as `Path` writes it."""
    return re.match(r"[a-z][a-z0-9+.-]+:/", str(place), re.IGNORECASE) is not None


def hide_address(address: str) -> str:
    """Return a whole address without its secrets. What was hidden is `***`."""
    return "::".join(map(_hide_link, CHAIN.split(address)))


def hide_secrets(text: str) -> str:
    """Return a text without the secrets of the addresses in it."""
    if ":/" in text:
        text = QUOTED.sub(lambda found: _hide_quoted(found[0]), text)
    return PARAMETER.sub(rf"\1{HIDDEN}", text) if "=" in text else text


def hide_word(word: str) -> str:
    """Return a word of a command line without the secrets of an address that is its value: `--data.train=URL`, or a URL, which may contain
    spaces and quotes."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{flag}{equals}{hide_address(value)}" if is_url(value) else hide_secrets(word)


def _hide_quoted(address: str) -> str:
    plain = address.rstrip(".,;:)]}")  # of the sentence
    return hide_address(plain) + address[len(plain) :]


def _hide_link(link: str) -> str:
    found = LINK.fullmatch(link)
    if found is None or _name_scheme(found["scheme"]) in LOCAL:
        return link
    place = found["place"]
    for user in _find_user(link)[:1]:
        place = HIDDEN + place[len(user) :]
    return f"{found['scheme']}{place}{found['query'][0] + HIDDEN if found['query'] else ''}"


def _find_user(link: str) -> list[str]:
    """The user with the password in a link of an address, then each of the two; empty if there is none.

    An address whose password contains `/` or `?` is invalid, but its password must be hidden, too."""
    found = LINK.fullmatch(link)
    if found is None or _name_scheme(found["scheme"]) in LOCAL | WITHOUT_USERS:
        return []
    rest = link[len(found["scheme"]) :]
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    port = host.rpartition(":")[2] if ":" in host and not host.endswith("]") else ""
    if "@" not in host and (port.isdecimal() or not port or "@" not in rest):
        return []
    user = (host if "@" in host else rest).rpartition("@")[0]
    return [user, *filter(None, user.split(":", 1))]


def _name_scheme(scheme: str) -> str:
    return scheme.rstrip("/").rstrip(":").lower()
