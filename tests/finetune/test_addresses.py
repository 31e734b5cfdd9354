"""An address is printed, saved, compared and hashed without its secrets, and keeps them for requests."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from overtone.finetune.addresses import RemoteAddress, hide_secrets, hide_word, is_url, looks_like_url

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("https://user:s3cr3t@host/a/train.jsonl", "https://***@host/a/train.jsonl"),
        ("https://s3cr3t@host:80/a", "https://***@host:80/a"),
        ("HTTPS://user:s3cr3t@host/a", "HTTPS://***@host/a"),
        ("https://host/a.jsonl?X-Amz-Signature=s3cr3t&x=1", "https://host/a.jsonl?***"),
        ("https://host?s3cr3t", "https://host?***"),
        ("https://[::1]:80/a?s3cr3t", "https://[::1]:80/a?***"),
        ("https://host/a#access_token=s3cr3t", "https://host/a#***"),
        ("https://user:s3c/r3t?@host/a", "https://***?***"),
        ("https://user:pass word's3cr3t@host/a", "https://***@host/a"),
        ("s3://key:s3cr3t@bucket/a?s3cr3t", "s3://***@bucket/a?***"),
        ("zip://a.jsonl::https://u:s3cr3t@host/b.zip?s3cr3t", "zip://a.jsonl::https://***@host/b.zip?***"),
        ("https://host/a?s3cr3t::zip://b?s3cr3t", "https://host/a?***::zip://b?***"),
        ("github://org:repo@main/a", "github://org:repo@main/a"),
        ("hf://datasets/me/voice@main/train.jsonl", "hf://datasets/me/voice@main/train.jsonl"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
        ("https://host:8000/@me/a", "https://host:8000/@me/a"),
        ("file:///mnt/what?.jsonl", "file:///mnt/what?.jsonl"),
    ],
)
def test_an_address_has_no_secrets_as_text(given: str, shown: str) -> None:
    address = RemoteAddress(given)
    assert (str(address), f"{address}", repr(address), json.dumps(address)) == (shown, shown, repr(shown), json.dumps(shown))
    assert address.with_secrets == given and SECRET not in address
    assert address == shown and hash(address) == hash(shown) and RemoteAddress(shown) == address, "saved and read again"
    assert address.lacks_secrets is False and RemoteAddress(str(address)).lacks_secrets is (given != shown)
    assert SECRET not in hide_secrets(f"cannot open '{given}'.") or " " in given
    assert SECRET not in hide_word(given) and SECRET not in hide_word(f"--data.train={given}")
    assert SECRET not in address.hide_in(f"ClientError: {given}") and SECRET not in address.child("b").parent.name


def test_copies_and_relatives_keep_the_secrets() -> None:
    address = RemoteAddress("https://u:p@host/runs/me/?sig=1")
    assert copy.deepcopy(address).with_secrets == RemoteAddress(address).with_secrets == "https://u:p@host/runs/me/?sig=1"
    assert address.name == "me" and address.child("a/b").with_secrets == "https://u:p@host/runs/me/a/b?sig=1"
    assert address.parent.with_secrets == "https://u:p@host/runs?sig=1"
    assert RemoteAddress("https://u:p@host/train.jsonl").parent.name == "host"
    inside = RemoteAddress("zip://deep/a.jsonl::https://host/b.zip?sig=1")
    assert (inside.name, inside.parent.child("c.wav").with_secrets) == ("a.jsonl", "zip://deep/c.wav::https://host/b.zip?sig=1")
    assert RemoteAddress("zip://a.jsonl::memory://b").parent.child("c.wav") == "zip://c.wav::memory://b"


def test_texts_lose_the_secrets_of_any_address_in_them() -> None:
    text = "see https://u:s3cr3t@h/x?s3cr3t, https:/u:s3cr3t@h/y (url: /b/k?X-Amz-Signature=s3cr3t&Expires=9) at 12:/30"
    assert hide_secrets(text) == "see https://***@h/x?***, https:/***@h/y (url: /b/k?X-Amz-Signature=***&Expires=9) at 12:/30"
    plain = "docs at https://host/page#part and s3://bucket/a; error:/etc/x, 3 = 2 + 1?"
    assert hide_secrets(plain) == plain


def test_a_text_loses_the_parts_of_an_address_that_a_client_quotes() -> None:
    address = RemoteAddress("https://user:s3cr3t@host/a?X-Amz-Credential=key/s3cr3t")
    assert SECRET not in address.hide_in("auth user:s3cr3t failed for /a?X-Amz-Credential=key/s3cr3t (key/s3cr3t), s3cr3t")


def test_paths_that_were_meant_as_urls_are_recognized() -> None:
    assert all(map(looks_like_url, ["https:/host/a", Path("https://u:p@host/a"), "S3://bucket"]))
    assert not any(map(looks_like_url, ["a/b", "C:/a", "/mnt/a:/b", Path("run"), "a:b"]))
    assert is_url("HTTPS://host/a") and not is_url("https:/host/a")
