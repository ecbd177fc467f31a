"""The house rules that a linter does not know, as tests over the syntax trees of all our Python files."""

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("logstore", "scheduler", "spe_adapter", "pyspark_cairn")
PROGRAMS = ("benchmarks", "compose")

FUNCTION_LINES_MAX = 70  # a function fits on a screen
MODULE_LINES_MAX = 600
CONSTRUCTOR_ARGUMENTS_MAX = 7

Function = ast.FunctionDef | ast.AsyncFunctionDef
Import = ast.Import | ast.ImportFrom
LOOKED_AT = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Call, ast.Import, ast.ImportFrom, ast.Assert)


@pytest.fixture(scope="module", autouse=True)
def _uncollected() -> Iterator[None]:
    """Syntax trees are many objects that stay: the garbage collector would look at all of them, again and again."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@cache
def python_files(*rooms: str) -> tuple[Path, ...]:
    """All Python files in these top-level folders, sorted; folders that do not exist are empty."""
    return tuple(path for room in rooms for path in sorted((ROOT / room).rglob("*.py")))


@cache
def source_of(path: Path) -> str:
    """A file."""
    return path.read_text(encoding="utf-8")


@cache
def source_lines(path: Path) -> tuple[str, ...]:
    """The lines of a file."""
    return tuple(source_of(path).splitlines())


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(source_of(path), filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All definitions, calls, imports and asserts of a file: what the rules look at, found in one walk."""
    return tuple(node for node in ast.walk(tree_of(path)) if isinstance(node, LOOKED_AT))


def place(path: Path, node: ast.expr | ast.stmt) -> str:
    """Where a node is, as an editor understands it."""
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def functions_of(path: Path) -> Iterator[Function]:
    """All functions and methods of a file, nested ones too."""
    for node in nodes_of(path):
        if isinstance(node, Function):
            yield node


def everything() -> tuple[Path, ...]:
    """All Python files that are ours."""
    return python_files(*PACKAGES, *PROGRAMS, "tests")


def constructor_arguments(definition: ast.ClassDef) -> int:
    """How many arguments it takes to construct this class, besides self: `__init__`'s, or a frozen object's own check.

    Dataclasses and named tuples are data, not constructors: their fields are not counted.
    """
    for node in definition.body:
        if isinstance(node, Function) and node.name == "__init__":
            arguments = node.args
            return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
    return 0


def calls_of(path: Path, module: str, name: str) -> Iterator[ast.Call]:
    """Calls of `module.name(…)`, and of `name(…)` where it was imported from `module`."""
    imported = any(
        isinstance(node, ast.ImportFrom) and node.module == module and any(alias.name == name for alias in node.names)
        for node in nodes_of(path)
    )
    for node in nodes_of(path):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        attribute = (
            isinstance(called, ast.Attribute)
            and called.attr == name
            and isinstance(called.value, ast.Name)
            and called.value.id == module
        )
        if attribute or (imported and isinstance(called, ast.Name) and called.id == name):
            yield node


def is_test_module(path: Path) -> bool:
    """Whether pytest collects this file."""
    return path.name.startswith("test_") or path.name.endswith("_test.py")


def test_a_function_fits_on_a_screen() -> None:
    """No function or method is longer than 70 lines, from its `def` to its end."""
    too_long = [
        f"{place(path, node)} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in everything()
        for node in functions_of(path)
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not too_long, "\n".join(too_long)


def test_a_module_is_small() -> None:
    """No module is longer than 600 lines."""
    too_long = [
        f"{path.relative_to(ROOT)}: {len(source_lines(path))} lines"
        for path in everything()
        if len(source_lines(path)) > MODULE_LINES_MAX
    ]
    assert not too_long, "\n".join(too_long)


def test_a_constructor_takes_few_arguments() -> None:
    """No `__init__` takes more than 7 arguments besides self: what belongs together travels in one object."""
    too_many = [
        f"{place(path, node)} {node.name}: {constructor_arguments(node)} arguments"
        for path in everything()
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef) and constructor_arguments(node) > CONSTRUCTOR_ARGUMENTS_MAX
    ]
    assert not too_many, "\n".join(too_many)


def test_a_class_name_means_one_thing() -> None:
    """No two classes of the product have the same name: a reader who searches for a name finds one class."""
    places: dict[str, list[str]] = {}
    for path in python_files(*PACKAGES):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(place(path, node))
    twice = [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]
    assert not twice, "\n".join(twice)


def test_every_module_says_what_it_is_for() -> None:
    """Every module that has anything in it opens with a docstring."""
    silent = [
        str(path.relative_to(ROOT))
        for path in everything()
        if source_lines(path) and not ast.get_docstring(tree_of(path))
    ]
    assert not silent, "\n".join(silent)


def test_modules_of_a_cluster_are_named_in_one_form() -> None:
    """Docstrings and comments of `logstore.cluster` name a module of ours by its whole dotted name."""
    short = re.compile(r"\b[a-z_]+\.py\b|`cluster\.[a-z_.]+`|\b(?:logstore|cluster)/[a-z_/]+")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "logstore" / "cluster").rglob("*.py"))
        for number, line in enumerate(source_lines(path), start=1)
        if short.search(line)
    ]
    assert not found, "\n".join(found)


def test_every_test_states_its_promise() -> None:
    """Every test function has a docstring."""
    silent = [
        f"{place(path, node)} {node.name}"
        for path in python_files("tests")
        if is_test_module(path)
        for node in functions_of(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not silent, "\n".join(silent)


def test_no_test_waits_by_sleeping() -> None:
    """Tests wait for conditions: no `time.sleep` anywhere in tests."""
    sleeps = [place(path, call) for path in python_files("tests") for call in calls_of(path, "time", "sleep")]
    assert not sleeps, "\n".join(sleeps)


def test_nothing_of_ours_is_imported_inside_functions() -> None:
    """Imports of our own packages stand at the top, so that the layering can be seen and checked.

    The one exception is the command line, whose subcommands each load their own room and only that.
    """
    late = []
    for path in python_files(*PACKAGES, *PROGRAMS):
        imports = sum(isinstance(node, Import) for node in nodes_of(path))
        at_the_top = sum(isinstance(node, Import) for node in tree_of(path).body)
        if path == ROOT / "logstore" / "cli.py" or imports == at_the_top:
            continue
        for function in functions_of(path):
            for node in ast.walk(function):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module or "."]
                else:
                    continue
                if any(name.split(".")[0] in PACKAGES for name in names):
                    late.append(place(path, node))
    assert not late, "\n".join(late)


def test_input_is_not_checked_by_assert() -> None:
    """`assert` vanishes under -O, so nothing outside the tests relies on it."""
    asserts = [
        place(path, node)
        for path in python_files(*PACKAGES)
        if ROOT / "logstore" / "testing" not in path.parents
        for node in nodes_of(path)
        if isinstance(node, ast.Assert)
    ]
    assert not asserts, "\n".join(asserts)


@pytest.mark.parametrize(
    "forbidden", ["TO" + "DO", "FIX" + "ME", "XX" + "X", "/ho" + "me/", "/Us" + "ers/", "/wo" + "rk/"]
)
def test_no_loose_ends_and_no_machine_paths(forbidden: str) -> None:
    """Nothing is left to be done some day, and no file knows the machine it was written on."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in everything()
        if forbidden in source_of(path)
        for number, line in enumerate(source_lines(path), start=1)
        if forbidden in line
    ]
    assert not found, "\n".join(found)
