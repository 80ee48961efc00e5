"""Kernels that a maintainer can read: fields of structs are explained, arguments are few, columns of matrices named.

Modules that name values by `range(n)` stand here by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kdissect

PACKAGE = Path(kdissect.__file__).parent
MOST_ARGUMENTS = 12
"""Positional arrays above that are a mistake that neither mypy nor numba can see: they want to be a struct."""
CODES = {
    "analysis/holds/hold_kernels.py", "analysis/sessions/session_rules.py", "analysis/sessions/shares.py",
    "kafka/recordsets/batch_layout.py", "kafka/recordsets/record_kernels.py", "kafka/recordsets/sequence_kernels.py",
    "net/headers.py", "net/packets.py", "rewriting/hiding_kernels.py",
}  # fmt: skip
"""Modules that name values, which are no columns, by `range(n)`."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Each module of the package that has kernels, structs or their layout."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if "@kernel" in text or "@part" in text or "@struct" in text or path.name in ("pcap.py", "session_rules.py"):
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(text)


def named(decorator: ast.expr) -> str:
    """What a decorator is called."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.id if isinstance(called, ast.Name) else ""


def kernels(module: ast.Module) -> Iterator[ast.FunctionDef]:
    """Kernels and parts."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and {named(one) for one in node.decorator_list} & {"kernel", "part"}:
            yield node


def bare_fields(module: ast.Module) -> list[str]:
    """Fields of structs that no line explains."""
    found = []
    for node in ast.walk(module):
        if not isinstance(node, ast.ClassDef) or "struct" not in {named(one) for one in node.decorator_list}:
            continue
        for line, following in zip(node.body, [*node.body[1:], None], strict=True):
            explained = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if isinstance(line, ast.AnnAssign) and not explained:
                found.append(f"{node.name}.{ast.unparse(line.target)}")
    return found


def numbered(module: ast.Module) -> bool:
    """Whether a module gives names to the numbers of a range."""
    return any(
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Call)
        and named(node.value) == "range"
        for node in module.body
    )  # fmt: skip


def test_arguments_are_few() -> None:
    many = [
        f"{name}: {one.name}"
        for name, module in sources()
        for one in kernels(module)
        if len(one.args.args) > MOST_ARGUMENTS
    ]
    assert not many


def test_each_field_of_a_struct_has_its_line() -> None:
    assert not [f"{name}: {field}" for name, module in sources() for field in bare_fields(module)]


def test_columns_of_a_matrix_are_fields() -> None:
    assert {name for name, module in sources() if numbered(module)} == CODES


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@struct\nclass A:\n    x: int\n    'a'\n    y: int\n", ["A.y"]),
        ("@struct\nclass A:\n    x: int\n    'a'\n", []),
        ("class A:\n    x: int\n", []),
    ],
)
def test_a_field_without_a_line_is_found(text: str, found: list[str]) -> None:
    assert bare_fields(ast.parse(text)) == found
    assert numbered(ast.parse("A, B = range(2)"))
    assert not numbered(ast.parse("A, B = 0, 1"))
