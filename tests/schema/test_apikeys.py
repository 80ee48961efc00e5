"""Keys of APIs that code names: they are Kafka's, and no other module has one as a number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from kdissect.schema import index
from kdissect.schema.apikeys import ApiKey
from tests.conftest import PACKAGE

NUMBERS = {re.sub(r"(?<!^)(?=[A-Z])", "_", api.name).upper(): key for key, api in index.load().apis.items()}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "apikeys.py")
KEYS = ("api", "api_key", "key")
"""Names of values that are keys of APIs."""
DECLARED = ("Api", "Event", "_quorum")
"""Declarations whose first value is one."""


def numbers(node: ast.AST) -> list[int]:
    """Whole numbers in an expression: of a tuple or a dictionary those that stand first or alone."""
    if isinstance(node, ast.Constant):
        return [node.value] if type(node.value) is int else []
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [number for element in node.elts for number in numbers(element)]
    return []


def assigned(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Names and what they become."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from (
                (name.id, value)
                for name, value in zip(target.elts, node.value.elts, strict=False)
                if isinstance(name, ast.Name)
            )
        elif isinstance(target, ast.Name):
            yield target.id, node.value


def named(node: ast.AST) -> str:
    """The name under which a value is had: of a variable, an attribute or a column."""
    if isinstance(node, ast.Subscript):
        return named(node.slice)
    if isinstance(node, ast.Call) and len(node.args) > 1:  # ints(table, "api_key")
        return named(node.args[1])
    return str(getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "value", ""))


def suspects(source: str) -> Iterator[tuple[int, str]]:
    """Lines in which a number is the key of an API."""
    for node in ast.walk(ast.parse(source)):
        found = False
        if isinstance(node, ast.Assign):
            for name, value in assigned(node):
                known = NUMBERS.get(name.lstrip("_").removesuffix("_API"))
                found |= known is not None and numbers(value) == [known]
                found |= name.endswith("_APIS") and not isinstance(value, ast.Constant) and bool(numbers(value))
        elif isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                known = NUMBERS.get(re.sub(r"(?<!^)(?=[A-Z])", "_", str(getattr(name, "value", ""))).upper())
                found |= known is not None and numbers(value) == [known]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            found = named(node.left) in KEYS and any(0 <= n < 200 for n in numbers(node.comparators[0]))
        elif isinstance(node, ast.Call) and node.args:
            name = named(node.func)
            found = name in DECLARED and bool(numbers(node.args[0]))
            found &= name != "Api" or len(node.args) == 1  # of a declaration; another class is of messages
            found |= name == "isin" and named(node.args[0]) in KEYS and bool(numbers(node.args[-1]))
        if found:
            yield int(getattr(node, "lineno", 0)), ast.unparse(node)


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_a_key_is_kafkas(key: ApiKey) -> None:
    assert NUMBERS[key.name] == key


def test_no_other_module_has_one_as_a_number() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): list(suspects(path.read_text())) for path in MODULES}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "FETCH = 1", "_ENVELOPE = 58", "PRODUCE, INIT_PRODUCER_ID = 0, 22", "GROUP_APIS = (11, 14)",
        "{'JoinGroup': 11}", "Api(3)",
        "rows['api'] == 18", "key != 18", "exchange.api in (0, 1)", "np.isin(ints(table, 'api_key'), (0, 1))",
    ],
)  # fmt: skip
def test_one_would_be_found(line: str) -> None:
    assert list(suspects(line))
