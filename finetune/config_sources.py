"""Config sources: strict YAML 1.2 files with the line of each key, and command-line overrides. Imports no torch."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files
from overtone.finetune.storage.folder_handles import name_paths
from overtone.finetune.storage.strict_json import DEEPEST, TOO_DEEP, one_line

if TYPE_CHECKING:
    from pydantic import JsonValue

LARGEST = 2**63 - 1
"""Largest integer: a larger one fits neither a tensor nor a random generator."""
TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null"))
UNWRITABLE = re.compile(r"[\0\ud800-\udfff]")
"""Characters that YAML can express ("\\0", "\\ud800"), but no path and no UTF-8 file can contain: zero bytes and lone surrogates."""


@dataclass(frozen=True)
class ConfigSource:
    """Values of one config source: a file or the command line."""

    values: dict[str, Any]
    origins: dict[str, str]
    """Dotted key → its place, as `file:line` or the flag."""
    overlay: bool = False
    """True if it is a section of a file that applies only under a condition."""
    from_file: bool = False
    """True if the values may come from anywhere, so that they must not name code."""


@dataclass
class Arguments:
    """Parsed command line, or what a program gives: the recipe, config files in order, overrides in order."""

    recipe: str | None = None
    files: list[Path] = field(default_factory=list)
    overrides: list[tuple[str, str]] = field(default_factory=list)
    help: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    """Overrides of a program: dotted key → value."""


def parse_arguments(argv: list[str], flags: Collection[str] = ()) -> Arguments:
    """Parse `--recipe NAME --config FILE --section.key value` (or `--section.key=value`). `flags`: what the verb has besides, which become
    overrides. Raises `UserError`."""
    name_paths(argv)
    parsed, tokens, known = Arguments(), iter(argv), ("config", "recipe", *flags)
    for token in tokens:
        if token in ("-h", "--help"):
            parsed.help = True
            continue
        if not token.startswith("--"):
            raise UserError(f"unexpected argument {token!r}; values follow a flag, as in --train.lr 1e-5")
        key, equals, value = token[2:].partition("=")
        if key not in known and "." not in key and (near := difflib.get_close_matches(key, known, n=1, cutoff=0.8)):
            raise UserError(f"unknown flag --{key}; did you mean --{near[0]}?")
        given = value if equals else next(tokens, None)
        if given is None or (not equals and re.match(r"--[a-z]", given)):
            raise UserError(f"--{key} needs a value, as in --{key} VALUE")
        _file_argument(parsed, key, given)
    return parsed


def _file_argument(parsed: Arguments, key: str, value: str) -> None:
    if key == "recipe":
        parsed.recipe = value
    elif key == "config":
        parsed.files.append(Path(value))
    else:
        parsed.overrides.append((key, value))


class Yaml12(yaml.SafeLoader):
    """Safe YAML loader with the 1.2 core schema: `1e-5` is a number, `yes` and `off` are text, duplicate keys are errors."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """Refuse aliases, of which ten lines can mean a billion values or a recursive value, and nesting too deep for recursion."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not supported", self.peek_event().start_mark)
        if self._depth > DEEPEST:
            raise yaml.composer.ComposerError(None, None, TOO_DEEP, self.peek_event().start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = int(node.value)  # PyYAML reads 010 as octal, and fails for 089
        if abs(value) > LARGEST:
            raise ValueError("a whole number of more than 64 bits")
        return value


class Dumper(yaml.SafeDumper):
    """YAML dumper that quotes text which the loader would read as a number, such as a commit 5e12345, and escapes unusual line breaks."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, Dumper.represent_text)
Yaml12.add_constructor("tag:yaml.org,2002:int", Yaml12.construct_yaml_int)
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9][0-9_]*", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    for _class in (Yaml12, Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first) + ([""] if _tag == "null" else [])
        )


def read_config_file(path: Path) -> ConfigSource:
    """Read a YAML file with the line of each key. Raises `UserError` for invalid syntax, duplicate keys, or a top level that is not a
    mapping."""
    try:
        text = input_files.read_argument(path).decode()
    except FileNotFoundError:
        raise UserError(f"--config {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as YAML: {error}") from None
    origins: dict[str, str] = {}
    node = _compose(text, str(path))
    values = {} if node is None else _construct(node, "", str(path), origins)
    if not isinstance(values, dict):
        raise UserError(f"{path}:1: expected `section:` with keys under it, found {type(values).__name__}")
    return ConfigSource(values, origins, from_file=True)


def split_section(source: ConfigSource, section: str) -> list[ConfigSource]:
    """Return a file without one of its top-level sections, and that section, if it is there, as an overlay whose keys are those of a file.

    Raises `UserError` if the section is not a mapping."""
    if section not in source.values:
        return [source]
    values, inside, prefix = dict(source.values), source.values[section], f"{section}."
    del values[section]
    if not isinstance(inside, dict):
        raise UserError(
            f"{source.origins[section]}: {section} = {inside!r}: expected keys under it, as in `{section}: {{train: {{lr: 1e-4}}}}`, "
            f"which apply if model.{section} is set"
        )
    origins = {key.removeprefix(prefix): place for key, place in source.origins.items() if key.startswith(prefix)}
    rest = {key: place for key, place in source.origins.items() if key != section and not key.startswith(prefix)}
    return [ConfigSource(values, rest, from_file=source.from_file), ConfigSource(inside, origins, True, source.from_file)]


def load_yaml(text: str, name: str) -> Any:
    """Parse a YAML document by the same rules. Raises `UserError` whose message begins with `name`."""
    node = _compose(text, name)
    return None if node is None else _construct(node, "", name, {})


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=Yaml12)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = ": ".join(filter(None, [error.context, error.problem]))  # without their marks: the place is in front
        raise UserError(f"{name}{line}: not readable as YAML: {one_line(problem)}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: "\\UFFFFFFFF", which is not a Unicode character
        raise UserError(f"{name}: not readable as YAML: {one_line(error)}") from None
    return node


def _construct(node: yaml.Node, prefix: str, file: str, origins: dict[str, str]) -> JsonValue:
    place, kind = f"{file}:{node.start_mark.line + 1}", node.tag.removeprefix("tag:yaml.org,2002:")
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        return [_construct(item, f"{prefix}{number}.", file, origins) for number, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode) and node.tag in TAGS:
        return _scalar(node, place, prefix)
    if not isinstance(node, yaml.MappingNode) or kind != "map":
        what = f"{place}: {prefix.rstrip('.')} is not a valid config value"
        raise UserError(f"{what}: the tag {node.tag} is not supported; write the value without it")
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        place = f"{file}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise UserError(f"{place}: {prefix.rstrip('.') or 'the file'} has a list or a mapping as a key; a key must be a name")
        key = key_node.value
        if key in result:
            raise UserError(f"{place}: {prefix}{key} is also set at {origins[prefix + key]}; remove one of them")
        origins[prefix + key] = place
        result[key] = _construct(value_node, f"{prefix}{key}.", file, origins)
    return result


def _scalar(node: yaml.ScalarNode, place: str, prefix: str) -> JsonValue:
    try:
        value = Yaml12("").construct_object(node, deep=True)
        if isinstance(value, str) and (found := UNWRITABLE.search(value)):
            raise ValueError(f"it contains {found.group()!a}, a character that no path and no text file can contain")
    except (yaml.YAMLError, ValueError, LookupError) as error:  # LookupError: `!!bool 3`
        raise UserError(f"{place}: {prefix.rstrip('.')} is not a valid config value: {one_line(error)}") from None
    return value


def parse_overrides(overrides: Iterable[tuple[str, str]]) -> ConfigSource:
    """Dotted command-line overrides as a config source; values are YAML (`--log.trackers "[wandb]"`)."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, text in overrides:
        if key.count(".") > DEEPEST:
            raise UserError(f"--{key[:60]}…: {TOO_DEEP}; keys are `section.key`")
        node = _compose(text, f"--{key} {text}")
        value = None if node is None else _construct(node, f"{key}.", f"--{key}", origins)
        merge(values, nest_value(key, value))
        origins[key] = f"--{key}"
    return ConfigSource(values, origins)


def parse_settings(settings: Mapping[str, object]) -> list[ConfigSource]:
    """Return a config source for each of the settings of a program, which are dotted keys with values: `{"train.lr": 5e-6, "model.lora":
    {"rank": 8}}`. Paths and numbers of numpy become plain values. Raises `UserError` for a value that no config file could hold."""
    sources = []
    for key, given in settings.items():
        place = f"settings[{key!r}]"
        if not isinstance(key, str) or key.count(".") > DEEPEST:
            raise UserError(f"{place[:60]}: a key is a text such as 'train.lr'")
        value = _make_plain(given, place, 0)
        origins = dict.fromkeys((key, *_list_keys(value, f"{key}.")), place)
        sources.append(ConfigSource(nest_value(key, value), origins))
    return sources


def _list_keys(value: JsonValue, prefix: str) -> Iterator[str]:
    """The dotted keys inside of a value, if that is a mapping."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield f"{prefix}{key}"
        yield from _list_keys(inner, f"{prefix}{key}.")


def _make_plain(value: object, place: str, depth: int) -> JsonValue:
    if depth > DEEPEST:
        raise UserError(f"{place}: {TOO_DEEP}")
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): _make_plain(inner, place, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_make_plain(inner, place, depth + 1) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral) and abs(int(value)) <= LARGEST:
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Integral):
        return float(value)
    if isinstance(value, str | PathLike) and isinstance(text := fspath(value), str) and not UNWRITABLE.search(text):
        return str(text)
    raise UserError(
        f"{place} = {one_line(reprlib.repr(value))} is not a valid config value; give a text, a path, a number, a truth value, or None"
    )


def format_settings(settings: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the settings of a program as overrides on a command line, with YAML as values."""
    texts = {
        key: yaml.dump(_make_plain(value, key, 0), Dumper=Dumper, default_flow_style=True, allow_unicode=True, width=float("inf"))
        for key, value in settings.items()
    }
    return [(key, text.removesuffix("...\n").rstrip("\n")) for key, text in texts.items()]


def nest_value(key: str, value: JsonValue) -> dict[str, JsonValue]:
    """`train.lr` and a value → `{"train": {"lr": value}}`."""
    section, dot, rest = key.partition(".")
    return {section: nest_value(rest, value) if dot else value}


def merge(into: dict[str, JsonValue], values: Mapping[str, JsonValue]) -> None:
    """Merge `values` into `into`, in place, section by section."""
    for key, value in values.items():
        inner = into.get(key)
        if isinstance(value, dict) and isinstance(inner, dict):
            merge(inner, value)
        else:
            into[key] = value
