"""What strangers' files hold: texts with something odd in one place, from a seed."""

from __future__ import annotations

import random

JSON_PIECES = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"true", b"{}", b"[]", b'""', b"\n", b"\r", b"\0", b"\xff", b"-", b"\t"),
    *(b'"\\ud800"', b'"\\udfff\\ud800"', b"\\ud83d", b'"\\ud83d\\ude00"', b"\xed\xa0\x80", b'"\\u0000"', b"\xef\xbb\xbf", b"\xff\xfe"),
    *(b"9" * 5000, b"1e999", b"-1e999", b"NaN", b"Infinity", b"-Infinity", b"1" + b"0" * 400),
    *(b"[" * 3000, b'{"a":' * 2000, b"[" * 150 + b"]" * 150, b'{"a":1,"a":2}', b'"role"', b'"text"'),
]  # fmt: skip
YAML_PIECES = [
    *(b"\0", b'"\\ud800"', b'"\\0"', b'"\\ud83d\\ude00"', b'"\\UFFFFFFFF"', b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe2\x80\xa8"),
    *(b"[" * 500, b"{a: " * 500, b"- " * 500, b"[" * 90 + b"]" * 90, b"? [a]\n: b\n", b"---\n", b"...\n", b"%YAML 9.9\n", b"|\n", b">\n"),
    *(b"&a ", b"*a", b"<<: ", b"a: &a [x, x]\nb: &b [*a, *a]\n", b"x: 1\nx: 1\n", b"null: 1\n", b"'", b'"', b"{", b"}", b"[", b"]", b"~"),
    *(b"!!python/object:os.system ", b"!!binary x", b"!!set {a}", b"!!timestamp 2020", b"!!timestamp x", b"!!bool 3", b"!!float ''"),
    *(b"9" * 5000, b"1" + b"0" * 400, b"9223372036854775808", b".inf", b"-.inf", b".nan", b"1e999", b"0o7", b"0x1", b"!x y", b"\t"),
]  # fmt: skip


def broken(chance: random.Random, data: bytes, pieces: list[bytes]) -> bytes:
    """The same with some bytes changed, gone or doubled, or a piece between them."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        begin = chance.randrange(len(data) + 1)
        end = min(len(data), begin + chance.choice((0, 1, 2, 8)))
        between = chance.choice((chance.choice(pieces), chance.choice(pieces), data[begin:end] * 2, b"", bytes([chance.randrange(256)])))
        data = data[:begin] + between + data[end:]
    return data


def value_replaced(chance: random.Random, lines: list[bytes], pieces: list[bytes]) -> bytes:
    """`key: value` lines, one of them with a piece where its value begins."""
    number = chance.randrange(len(lines))
    key, colon, value = lines[number].partition(b":")
    replaced = key + colon + b" " + chance.choice(pieces) + chance.choice((b"", value))
    return b"\n".join([*lines[:number], replaced, *lines[number + 1 :]])
