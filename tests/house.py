"""The rules of the house as functions from source text to complaints, so that each can be shown a house that breaks it.

A house is a mapping from a path relative to the repository root (`finetune/training/loop.py`) to that file's source.
A complaint is one line: place and fault.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

House = Mapping[str, str]

PACKAGES = ("finetune", "data_prep", "recipes", "studio")
TOP = "overtone"
BELOW = f"{TOP}."
"""Everything is imported below this name. A house's own module names leave it out, except those of the files beside the packages."""

ROLES: dict[str, str] = {
    "recipe": "",
    "options": "",
    "state": "",
    "verbs": "",
    "released_models": "",
    "speech_registration": "",
    "dataset_speakers": "model",
    "sequence_layout": "model",
    "modeling": "model",
    "sampling_settings": "model",
    "tiny_checkpoint": "model",
    "exported_folder": "inference",
    "decoding": "inference",
    "synthesizer": "inference",
    "export_plan": "exporting",
    "model_card": "exporting",
}
"""Module → its folder in every recipe that has it; docs/add_a_recipe.md says what each is for."""
ROLE_OF_NAME = {"RECIPE": "recipe", "Options": "options", "INFERENCE": "verbs", "plan_export": "export_plan"}
"""What a module of a recipe defines at its top → the name of that module."""
EMPTY_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "tools", "stuff"})
DISK_OWNERS = ("finetune/storage/files.py", "finetune/storage/folder_handles.py")
INPUT_OWNER = "finetune/storage/input_files.py"
OWN_READERS: dict[str, str] = {
    "finetune/cli/copy_recipe.py": "the code of a recipe, which is run anyway",
    "finetune/command_lines.py": "/proc",
    "finetune/hardware/host_memory.py": "/proc and /sys",
    "finetune/monitoring/peer_processes.py": "/proc",
    "finetune/storage/demo_models.py": "archives of the demo models, and a folder from which one is made",
    "finetune/training/sampling_process.py": "a temporary folder of this process",
    "data_prep/audio/sandboxed_decoder.py": "a temporary folder of this process",
    "data_prep/parallel/ray_pool.py": "a mark that another worker of this command writes",
    "recipes/language/tokenization/template_render_watchdog.py": "/proc",
    "recipes/llm_sft/model/tiny_checkpoint.py": "a tokenizer of this package",
    "recipes/voice_clone/demo/comparison_clips.py": "data of the demo",
    "recipes/voice_clone/demo/demo_metrics.py": "data of the demo",
}
"""File → what it reads that no user and no download can have put there."""
GATE = "finetune/storage/model_security.py"
ALLOWED_DANGERS: dict[tuple[str, str], str] = {
    ("finetune/recipe/discovery.py", "spec.loader.exec_module"): "a recipe whose folder was given on the command line",
    ("recipes/llm_grpo/rewards/reward_process.py", "spec.loader.exec_module"): "functions whose file was given on the command line",
}
"""(file, call) → why it may stand there."""
STRICT_READERS = ("finetune/storage/strict_json.py", "finetune/config_sources.py")
LENIENT = re.compile(r"json\.loads?|json\.JSONDecoder|yaml\.(safe_load|safe_load_all|compose|compose_all|parse|scan)")


@cache
def parse(source: str) -> ast.Module:
    """Each file once, for all rules."""
    return ast.parse(source)


def read_house(root: Path) -> House:
    """Every Python file of the packages, and of `overtone/`, whose folders are links to them."""
    paths = sorted([*(root / TOP).glob("*.py"), *(path for package in PACKAGES for path in (root / package).rglob("*.py"))])
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def module_name(path: str) -> str:
    """`finetune/training/loop.py` → `overtone.finetune.training.loop`, its name below `overtone`; a package is called by its folder."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _name_in_house(imported: str, modules: Container[str]) -> str:
    return imported if imported in modules else imported.removeprefix(BELOW)


def imports_of_packages_above(house: House) -> list[str]:
    """Imports of a package that the importing module is in, which are a cycle; import-linter sees cycles between siblings alone."""
    return [
        f"{path}:{node.lineno}: imports {_absolute(node, path)}, which it is in"
        for path, source in house.items()
        for node in ast.walk(parse(source))
        if isinstance(node, ast.ImportFrom) and f"{BELOW}{module_name(path)}".startswith(f"{_absolute(node, path)}.")
        if any(not _is_module(f"{_absolute(node, path)}.{alias.name}", house) for alias in node.names)
    ]


def _absolute(node: ast.ImportFrom, path: str) -> str:
    if not node.level:
        return node.module or ""
    parent = PurePosixPath(TOP, path).parts[: -node.level]
    return ".".join([*parent, *([node.module] if node.module else [])])


def _is_module(name: str, house: House) -> bool:
    path = name.removeprefix(BELOW).replace(".", "/")
    return f"{path}.py" in house or f"{TOP}/{path}.py" in house or any(each.startswith(f"{path}/") for each in house)


def forbidden_names(house: House, dependencies: frozenset[str]) -> list[str]:
    """A script launch puts the script's folder first on the import path: a module there would hide what bears the same name."""
    taken = (frozenset(sys.stdlib_module_names) | dependencies) - {"__main__"}
    complaints = []
    for path in house:
        pure = PurePosixPath(path)
        if EMPTY_NAMES & {pure.stem, *pure.parts}:
            complaints.append(f"{path}: the name says nothing about what is inside")
        for name in {pure.stem, *pure.parts[1:-1]} & taken if pure.parts[0] in ("finetune", "data_prep") else ():
            complaints.append(f"{path}: hides the module {name} when its folder comes first on the import path")
    return complaints


def repeated_class_names(house: House) -> list[str]:
    """Public classes of the same name in two modules: a reader of one takes it for the other. Not `Options` of recipes."""
    places: dict[str, list[str]] = {}
    for path, source in house.items():
        for node in parse(source).body:
            of_contract = isinstance(node, ast.ClassDef) and node.name == "Options" and PurePosixPath(path).match("recipes/*/options.py")
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not of_contract:
                places.setdefault(node.name, []).append(path)
    return [f"{name}: {', '.join(paths)}" for name, paths in sorted(places.items()) if len(paths) > 1]


def imports_of_missing_names(house: House, importers: House) -> list[str]:
    """Imports in `importers` of a module or a name of the house that does not exist. mypy reads no tests, and of the
    workshop only the benchmarks."""
    modules = {module_name(path): _bound_names(parse(source)) for path, source in house.items()}
    folders = {parent for name in modules for parent in _folders_above(name)}
    complaints = []
    for path, source in importers.items():
        for node in ast.walk(parse(source)):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(BELOW) or node.level:
                continue
            module = _name_in_house(node.module or "", modules)
            known = modules.get(module, set())
            for name in (alias.name for alias in node.names):
                whole = f"{module}.{name}"
                if not known & {name, "__getattr__", "*"} and whole not in modules and whole not in folders:
                    complaints.append(f"{path}:{node.lineno}: {node.module} has no {name}")
    return complaints


def bare_imports(importers: House) -> list[str]:
    """Imports of a package of the house by its folder's name, which would be a second copy of its modules, with other classes."""
    return [
        f"{path}:{node.lineno}: imports {name}; import {BELOW}{name}"
        for path, source in importers.items()
        for node in ast.walk(parse(source))
        for name in _absolute_imports(node)
        if name.partition(".")[0] in PACKAGES
    ]


def _absolute_imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


def _folders_above(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts)))


def _bound_names(tree: ast.Module) -> set[str]:
    """What a module binds at its top, in branches too; what functions and classes bind inside stays out."""
    found: set[str] = set()
    left: list[ast.AST] = list(tree.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            left += ast.iter_child_nodes(node)
    return found


def misplaced_roles(house: House) -> list[str]:
    """Modules of recipes in another folder than the same module of other recipes, or with another name than `ROLE_OF_NAME` gives them."""
    complaints = []
    recipes = {PurePosixPath(path).parent for path in house if PurePosixPath(path).match("recipes/*/recipe.py")}
    for path, source in house.items():
        pure = PurePosixPath(path)
        for folder in recipes & {*pure.parents}:
            where = pure.parent.relative_to(folder).as_posix().removeprefix(".")
            if where.partition("/")[0] in {"", *ROLES.values()} and ROLES.get(pure.stem, where) != where:
                complaints.append(f"{path}: belongs at {folder / ROLES[pure.stem] / pure.name}, as in every recipe")
            defined = {node.name for node in parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            assigned = {
                target.id
                for node in parse(source).body
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for name, role in ROLE_OF_NAME.items():
                if name in defined | assigned and pure.stem != role:
                    complaints.append(f"{path}: defines {name}, which belongs in {folder / ROLES[role] / role}.py")
    return complaints


def missing_tests(house: House, tests: set[str]) -> list[str]:
    """`finetune/training/loop.py` has `tests/finetune/training/test_loop.py`. Entries and an `__init__` without functions need none."""
    complaints = []
    for path, source in house.items():
        pure = PurePosixPath(path)
        if pure.name == "__main__.py" or (pure.name == "__init__.py" and not _defines(source)):
            continue
        wanted = f"tests/{pure.parent}/test_{pure.name}"
        if wanted not in tests:
            complaints.append(f"{path}: has no {wanted}")
    return complaints


def _defines(source: str) -> bool:
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in ast.walk(parse(source)))


def dangerous_calls(house: House) -> list[str]:
    """What runs code that came as data, as far as ruff does not find it: its rules S and TID251 have the rest."""
    return [f"{path}:{line}: {fault}" for path, source in house.items() for line, fault in _dangers(path, parse(source))]


def _dangers(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load) and _is_dangerous(_dotted(node)):
            if (path, _dotted(node)) not in ALLOWED_DANGERS:
                yield node.lineno, _dotted(node)
        elif isinstance(node, ast.keyword) and _is_dangerous_keyword(node):
            yield node.value.lineno, f"passes {node.arg}"
        elif isinstance(node, ast.Constant) and node.value == "trust_remote_code" and path != GATE:
            yield node.lineno, "names trust_remote_code"


def ungated_loaders(house: House) -> list[str]:
    """Calls of `from_pretrained` on anything but a folder that passed the gate: `with admit(…) as clean: X.from_pretrained(clean, …)`.

    A call on None builds from a config and weights that are in memory already. Each call says that it trusts no remote code.
    """
    return [f"{path}:{line}: {fault}" for path, source in house.items() for line, fault in _ungated(parse(source))]


def _ungated(tree: ast.Module) -> Iterator[tuple[int, str]]:
    gated = {id(call) for node in ast.walk(tree) if isinstance(node, ast.With) for call in _calls_on_clean_folders(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained":
            call = next((each for each in ast.walk(tree) if isinstance(each, ast.Call) and each.func is node), None)
            if call is None or (id(call) not in gated and not (call.args and _is_none(call.args[0]))):
                yield node.lineno, f"{_dotted(node)}: not on a folder that passed the gate"
            elif not any(keyword.arg == "trust_remote_code" for keyword in call.keywords):
                yield node.lineno, f"{_dotted(node)}: does not say trust_remote_code=False"


def _calls_on_clean_folders(node: ast.With) -> Iterator[ast.Call]:
    names = {
        item.optional_vars.id
        for item in node.items
        if isinstance(item.context_expr, ast.Call) and _dotted(item.context_expr.func) == "admit"
        if isinstance(item.optional_vars, ast.Name)
    }
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and inner.args and isinstance(inner.args[0], ast.Name) and inner.args[0].id in names:
            yield inner


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_dangerous(name: str) -> bool:
    return name in ("eval", "exec", "compile", "__import__") or name.rpartition(".")[2] == "exec_module"


def _is_dangerous_keyword(node: ast.keyword) -> bool:
    if node.arg in ("shell", "allow_pickle"):
        return not (isinstance(node.value, ast.Constant) and node.value.value is False)
    if node.arg == "trust_remote_code":
        return not (isinstance(node.value, ast.Constant) and node.value.value is False)
    return node.arg == "weights_only" and not _is_true(node.value)


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def disk_writes(house: House) -> list[str]:
    """Changes to the disk that do not pass through `overtone.finetune.storage.files`. Writing into an `io.BytesIO` is no such change."""
    return [f"{path}:{line}: {call}" for path, source in house.items() if path not in DISK_OWNERS for line, call in _writes(parse(source))]


PATH_METHODS = frozenset({"write_text", "write_bytes", "unlink", "rename", "mkdir", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod"})
OS_CHANGES = re.compile(
    r"os\.(rename|renames|replace|remove|unlink|mkdir|makedirs|rmdir|removedirs|link|symlink|truncate|chmod|mkfifo)"
    r"|shutil\.(copy\w*|move|rmtree|make_archive|unpack_archive)"
    r"|tempfile\.(NamedTemporaryFile|TemporaryDirectory|mkdtemp|mkstemp)"
)
SAVERS = re.compile(
    r"(np|numpy)\.(save|savez|savez_compressed|savetxt)|torch\.save|(soundfile|sf)\.write"
    r"|(.*\.)?(tofile|savefig|imsave|save_file|save_model|save_pretrained|to_csv)"
)
OPENERS = frozenset({"open", "fdopen", "SoundFile", "memmap", "ZipFile"})


def _writes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    buffers = _buffers(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _changes_disk(node, buffers):
            yield node.lineno, ast.unparse(node.func)


def _changes_disk(call: ast.Call, buffers: set[str]) -> bool:
    name = _dotted(call.func)
    receiver, _, method = name.rpartition(".")
    if receiver == "files":
        return False
    if OS_CHANGES.fullmatch(name) or method in PATH_METHODS:
        return True
    if method == "replace":  # Path.replace takes one argument, str.replace at least two, dataclasses.replace keywords
        return len(call.args) == 1 and not call.keywords
    if method in OPENERS:
        return any(re.fullmatch(r"[rbt]*[wax+][rwabtx+]*", text) for text in _texts(call))
    into_memory = bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id in buffers
    return SAVERS.fullmatch(name) is not None and not into_memory


def bare_reads(house: House) -> list[str]:
    """Files that are opened past `overtone.finetune.storage.input_files`, which refuses pipes and devices, and files without an end. The
    package's
    own resources are named by constants (`PAGE.read_text()`)."""
    return [
        f"{path}:{line}: {call}"
        for path, source in house.items()
        if path not in (*DISK_OWNERS, INPUT_OWNER, *OWN_READERS)
        for line, call in _reads(parse(source))
    ]


def _reads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        receiver, _, method = name.rpartition(".")
        if receiver and method in ("read_bytes", "read_text"):
            opens = receiver != "input_files" and not receiver.lstrip("(").split(" ")[0].split(".")[0].isupper()
        elif receiver and method == "open":  # the mode is its first argument, unlike that of fsspec
            modes = [each.value for each in node.args[:1] if isinstance(each, ast.Constant)]
            opens = bool({"r", "rb", "rt"}.intersection(modes)) or any(keyword.arg == "encoding" for keyword in node.keywords)
        else:
            opens = name == "open" or (name in ("gzip.GzipFile", "gzip.open") and bool(node.args))
        if opens:
            yield node.lineno, name


def lenient_readers(house: House) -> list[str]:
    """Where JSON or YAML is parsed past the two strict readers, which refuse what nothing later can handle: `path: call`."""
    return [
        f"{path}: {name}"
        for path, source in house.items()
        for node in ast.walk(parse(source))
        if isinstance(node, ast.Attribute) and LENIENT.fullmatch(name := _dotted(node)) and path not in STRICT_READERS
    ]


def abbreviating_parsers(house: House) -> list[str]:
    """Where an `ArgumentParser` completes abbreviated flags: what checks a command by its flags would not see `--push-to` for
    `--push-to-hub`."""
    return [
        f"{path}:{node.lineno}: a parser without allow_abbrev=False"
        for path, source in house.items()
        for node in ast.walk(parse(source))
        if isinstance(node, ast.Call)
        and _dotted(node.func).endswith("ArgumentParser")
        and not any(
            keyword.arg == "allow_abbrev" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            for keyword in node.keywords
        )
    ]


def loose_line_ends(house: House) -> list[str]:
    """Where lines are split at more than line feeds: `splitlines`, a file iterated in text mode, `read_text` that is then split.


    JSON texts and sentences can contain U+2028, U+0085, form feeds and carriage returns; `finetune/storage/text_lines.py` leaves them
    alone.
    """
    return [f"{path}:{line}: {fault}" for path, source in house.items() for line, fault in _loose_ends(parse(source))]


def _loose_ends(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("splitlines", "readlines"):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("split", "partition"):
            of = node.func.value
            if isinstance(of, ast.Call) and _dotted(of.func).endswith(".read_text") and "\n" in _texts(node):
                yield node.lineno, f"read_text().{node.func.attr}"
        elif isinstance(node, ast.With):
            names = {item.optional_vars.id for item in node.items if _opens_text(item) and isinstance(item.optional_vars, ast.Name)}
            loops = [each.iter for each in ast.walk(node) if isinstance(each, ast.For | ast.comprehension)]
            read = {name.id for loop in loops for name in ast.walk(loop) if isinstance(name, ast.Name)}
            yield from ((node.lineno, f"lines of {name} in text mode") for name in sorted(names & read))


def _opens_text(item: ast.withitem) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call) or _dotted(call.func).rpartition(".")[2] != "open" or _dotted(call.func).startswith("Image"):
        return False
    return not any("b" in text for text in _texts(call) if re.fullmatch("[rwabxt+]{1,3}", text)) and _dotted(call.func) != "safe_open"


def _texts(call: ast.Call) -> list[str]:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


def _buffers(tree: ast.Module) -> set[str]:
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    in_memory = [node for node in assignments if _dotted(node.value.func).rpartition(".")[2] == "BytesIO"]  # type: ignore[attr-defined]
    return {target.id for node in in_memory for target in node.targets if isinstance(target, ast.Name)}


def undeclared_imports(house: House, declared: frozenset[str]) -> list[str]:
    """Third-party packages that are imported and that pyproject.toml does not name."""
    known = frozenset(sys.stdlib_module_names) | declared | {BELOW.rstrip(".")}
    complaints = []
    for path, source in house.items():
        for node in ast.walk(parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            complaints += [f"{path}:{node.lineno}: {name} is not declared" for name in names if name.partition(".")[0] not in known]
    return complaints


def uncounted_listings(tests: House) -> list[str]:
    """Test files whose cases come from a listing (of a folder, a registry) and that nowhere assert how many were found.

    An empty listing runs no test and reports success.
    """
    uncounted = [path for path, source in tests.items() if _lists_uncounted(source)]
    return [f"{path}: parametrised over a listing whose length no test asserts" for path in uncounted]


def _lists_uncounted(source: str) -> bool:
    tree = parse(source)
    calls = [_dotted(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)]
    listed = "parametrize" in calls and not {"glob", "rglob", "iterdir", "listdir"}.isdisjoint(_module_level_calls(tree))
    return listed and not any(_asserts_length(node) for node in ast.walk(tree))


def _module_level_calls(tree: ast.Module) -> set[str]:
    outside = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    decorators = [decorator for node in tree.body if isinstance(node, ast.FunctionDef) for decorator in node.decorator_list]
    inner = [node for top in [*outside, *decorators] for node in ast.walk(top) if isinstance(node, ast.Call)]
    return {_dotted(node.func).rpartition(".")[2] for node in inner}


def _asserts_length(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert) and any(isinstance(part, ast.Call) and _dotted(part.func) == "len" for part in ast.walk(node.test))


def unstable_parameters(tests: House) -> list[str]:
    """Parameters that differ from one collection to the next: the clock, chance, the process, the order of a set.

    Two workers of xdist that collect different ids end the run before its first test.
    """
    return [f"{path}:{line}: {fault}" for path, source in tests.items() for line, fault in _unstable_in(parse(source))]


UNSTABLE = re.compile(
    r"(random|secrets|uuid|time|tempfile)\.(?!Random$)\w+|(np|numpy|torch)\.(random\.)?rand\w*"
    r"|(datetime\.)?(datetime|date)\.(now|utcnow|today)|os\.(urandom|getpid|times)|urandom|uuid[14]|token_(bytes|hex)|id|hash|object"
)


def _unstable_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    bound = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _dotted(call.func).rpartition(".")[2] == "parametrize":
            for part in (part for value in _with_bound_names(call, bound) for part in ast.walk(value)):
                if isinstance(part, ast.Call) and UNSTABLE.fullmatch(_dotted(part.func)):
                    yield part.lineno, f"a parameter from {_dotted(part.func)}"
                elif isinstance(part, ast.Call) and _dotted(part.func) == "gzip.compress" and not _has_mtime(part):
                    yield part.lineno, "a parameter from gzip.compress without mtime=0: it writes the time of day"
            if len(call.args) > 1 and _is_set(call.args[1], bound):
                yield call.lineno, "parametrised over a set, whose order differs between processes; sort it"


def _with_bound_names(call: ast.Call, bound: Mapping[str, ast.expr]) -> list[ast.AST]:
    """The call, and the values of all module-level names that it reads, directly or through others."""
    reached: dict[str, ast.expr] = {}
    waiting: list[ast.AST] = [call]
    while waiting:
        names = {node.id for node in ast.walk(waiting.pop()) if isinstance(node, ast.Name)}
        fresh = {name: bound[name] for name in names & set(bound) - set(reached)}
        reached |= fresh
        waiting += fresh.values()
    return [call, *reached.values()]


def _has_mtime(call: ast.Call) -> bool:
    return any(keyword.arg == "mtime" and isinstance(keyword.value, ast.Constant) and keyword.value.value == 0 for keyword in call.keywords)


def _is_set(value: ast.expr, bound: Mapping[str, ast.expr]) -> bool:
    if isinstance(value, ast.Name) and value.id in bound:
        return _is_set(bound[value.id], {name: other for name, other in bound.items() if name != value.id})
    if isinstance(value, ast.List | ast.Tuple) and len(value.elts) == 1 and isinstance(value.elts[0], ast.Starred):
        return _is_set(value.elts[0].value, bound)
    if isinstance(value, ast.Call) and _dotted(value.func) in ("list", "tuple") and value.args:
        return _is_set(value.args[0], bound)
    return isinstance(value, ast.Set | ast.SetComp) or (isinstance(value, ast.Call) and _dotted(value.func) in ("set", "frozenset"))


Function = ast.FunctionDef | ast.AsyncFunctionDef
SMALL = 5
"""Number of lines of a function that a reader could as well read where it is called."""


def functions_of_whole_config(house: House) -> list[str]:
    """Functions of the packages that take the whole `Config`: their signature does not show which settings they depend on."""
    return [place for place, function in _functions(house) if "Config" in _names_in(_parameter_types(function))]


def functions_with_any(house: House) -> list[str]:
    """Functions of the packages with `Any` in their signature."""
    return [place for place, function in _functions(house) if "Any" in _names_in([*_parameter_types(function), function.returns])]


def count_functions(house: House) -> int:
    """The number of functions and methods of the packages."""
    return sum(1 for _ in _functions(house))


def small_functions_used_once(house: House) -> list[str]:
    """Functions of the packages with at most `SMALL` lines whose name occurs once outside of its definition: each makes a reader jump.
    Decorated and special methods are called in other ways."""
    occurrences = Counter(name for path, source in house.items() if _is_in_packages(path) for name in _names_in([parse(source)]))
    return [
        place
        for place, function in _functions(house)
        if (function.end_lineno or 0) - function.lineno < SMALL and not function.decorator_list
        if occurrences[function.name] == 1 and not function.name.startswith("__")
    ]


def _is_in_packages(path: str) -> bool:
    return path.partition("/")[0] in PACKAGES


def _functions(house: House) -> Iterator[tuple[str, Function]]:
    """Place and syntax tree of every function of the packages, methods and inner functions included."""
    for path, source in house.items():
        if _is_in_packages(path):
            nodes = [node for node in ast.walk(parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield from ((f"{path}:{node.lineno}: {node.name}", node) for node in nodes)


def _parameter_types(function: Function) -> list[ast.expr | None]:
    given = function.args
    return [each.annotation for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if each is not None]


def _names_in(nodes: Iterable[ast.AST | None]) -> list[str]:
    """Every occurrence of a name: read, assigned, as an attribute, imported, or alone in a string, as in a quoted type."""
    found: list[str] = []
    for node in (inner for outer in nodes if outer is not None for inner in ast.walk(outer)):
        if isinstance(node, ast.Name):
            found.append(node.id)
        elif isinstance(node, ast.Attribute):
            found.append(node.attr)
        elif isinstance(node, ast.alias):
            found.append(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.append(node.value)
    return found


FRAGMENT = re.compile(r"(Of|Whether|What|How|Why|Which|Where|Those|Theirs|Most of|That of|As of|As in|See)\b")
"""First words of a docstring that is a fragment. A sentence may begin with them too, but rarely does, and reads as well with others."""


def fragments(house: House) -> list[str]:
    """Docstrings, of fields too, that begin as a fragment does: a reader without the code does not know what they describe."""
    return [
        f"{path}:{constant.lineno}: {str(constant.value).strip().partition(chr(10))[0]}"
        for path, source in house.items()
        for node in ast.walk(parse(source))
        if isinstance(node, ast.Expr) and isinstance(constant := node.value, ast.Constant)
        if FRAGMENT.match(str(constant.value).strip())
    ]
