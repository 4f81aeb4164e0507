"""Small changes of source code, each of which the tests should notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
}
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the text from `start` to `end` (offsets in UTF-8 bytes) becomes `after`. Its
    statement covers `lines` (of a compound statement: its head). function: the name and the first
    line of the outermost function around it; None if an import executes it.
    """

    file: str
    line: int
    lines: range
    function: tuple[str, int] | None
    start: int
    end: int
    before: str
    after: str

    def source(self, original: bytes) -> bytes:
        """The file with the change."""
        return original[: self.start] + self.after.encode() + original[self.end :]

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.file}:{self.line}: {before} -> {after or '(removed)'}"


def mutants(root: Path, file: Path) -> list[Mutant]:
    """Every change of `file`, in the order of the source. Text, annotations and
    decorators stay as they are.
    """
    source = file.read_bytes()
    return sorted(
        _Source(str(file.relative_to(root)), source).mutants(),
        key=lambda one: (one.start, one.end, one.after),
    )


class _Source:
    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._bytes = file, source
        self._tree = ast.parse(source)
        starts = [0]
        for row in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(row))
        self._starts = starts

    def mutants(self) -> Iterator[Mutant]:
        for node, place in _runtime_nodes(self._tree, _Place()):
            for start, end, after in self._changes(node):
                line = self._bytes.count(b"\n", 0, start) + 1
                before = self._bytes[start:end].decode()
                yield Mutant(
                    self._file, line, place.lines, place.function, start, end, before, after
                )

    def _span(self, node: ast.AST) -> tuple[int, int]:
        first, last = getattr(node, "lineno"), getattr(node, "end_lineno")  # noqa: B009
        return (
            self._starts[first - 1] + getattr(node, "col_offset"),  # noqa: B009
            self._starts[last - 1] + getattr(node, "end_col_offset"),  # noqa: B009
        )

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._bytes[start:end].decode()

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        whole = self._span(node) if hasattr(node, "lineno") else (0, 0)
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for before, after, operator in zip(operands, operands[1:], node.ops, strict=False):
                between = self._span(before)[1], self._span(after)[0]
                if self._is_plain(*between):
                    for changed in _COMPARISONS[type(operator)]:
                        yield *between, f" {changed} "
        elif isinstance(node, ast.BoolOp):
            changed = "or" if isinstance(node.op, ast.And) else "and"
            for before, after in zip(node.values, node.values[1:], strict=False):
                between = self._span(before)[1], self._span(after)[0]
                if self._is_plain(*between):
                    yield *between, f" {changed} "
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield *whole, f"({self._text(node.operand)})"
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            between = self._span(node.left)[1], self._span(node.right)[0]
            if self._is_plain(*between) and not _is_text(node.left):
                yield *between, f" {_ARITHMETIC[type(node.op)]} "
        elif isinstance(node, ast.Constant):
            yield from ((*whole, text) for text in _constants(node.value))
        elif isinstance(node, ast.Name) and node.id in _OPPOSITES:
            yield *whole, _OPPOSITES[node.id]
        elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield from self._negation(node.test)
        elif isinstance(node, ast.comprehension):
            for condition in node.ifs:
                yield from self._negation(condition)
        elif isinstance(node, ast.Return) and node.value is not None:
            if not isinstance(node.value, ast.Constant):
                yield *whole, "return None"
        elif _can_go(node):
            yield *whole, "pass"

    def _negation(self, test: ast.expr) -> Iterator[tuple[int, int, str]]:
        """Comparisons, and/or and `not` have their own changes."""
        if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            yield *self._span(test), f"(not {self._text(test)})"

    def _is_plain(self, start: int, end: int) -> bool:
        """Whether an operator stands alone between its operands, without brackets or comments."""
        return not set(self._bytes[start:end].decode()) & set("()#\\")


def _constants(value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (str(not value),)
    if isinstance(value, int) and value > 10:
        return (str(value * 2), str(value // 2))
    if isinstance(value, int):
        return (str(value + 1), str(value - 1)) if value > 0 else (str(value + 1),)
    if isinstance(value, float):
        return (repr(value * 2), repr(value / 2)) if value else ("1.0",)
    return ()


def _can_go(node: ast.AST) -> bool:
    """Whether the statement can be removed. Without an assignment to a name, every use fails."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Await))
    if isinstance(node, ast.Assign):
        return not isinstance(node.targets[0], (ast.Name, ast.Tuple))
    return isinstance(node, (ast.Continue, ast.Break, ast.Raise, ast.AugAssign))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@dataclass(frozen=True, slots=True)
class _Place:
    scope: str = ""
    lines: range = range(0)
    function: tuple[str, int] | None = None


def _runtime_nodes(node: ast.AST, place: _Place) -> Iterator[tuple[ast.AST, _Place]]:
    """`node` and those below without annotations, decorators and formatted text."""
    if isinstance(node, (ast.stmt, ast.match_case)):
        place = replace(place, lines=_lines(node))
    yield node, place
    inner = place
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        inner = replace(place, scope=f"{place.scope}{node.name}.")
        if not isinstance(node, ast.ClassDef) and place.function is None:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            inner = replace(inner, function=(inner.scope[:-1], first))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _runtime_nodes(child, inner if name == "body" else place)


def _lines(statement: ast.stmt | ast.match_case) -> range:
    place = statement.pattern if isinstance(statement, ast.match_case) else statement
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else place.end_lineno
    return range(place.lineno, max(place.lineno, last or 0) + 1)
