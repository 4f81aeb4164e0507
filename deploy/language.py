"""Check the language of docstrings, comments, messages and names.

    python deploy/language.py [PATH ...]

Standard library only. Prints one line per finding, `file:line: rule: text`, and exits with 1 if
there is any. CONTRIBUTING.md explains the rules with examples.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = ("autoscaler", "executors", "streams", "topics", "loadtests", "tests", "deploy")
LONGEST_COMMENT = 3  # in lines; a longer explanation belongs in a docstring or in docs/

OPENINGS = re.compile(r"(Owns|What|Who|Whose)\b")
"""Forbidden first words of a docstring, because they do not name its subject."""

WORDS = {
    r"anew": "again",
    r"whoever": "name the component",
    r"somebody|someone|nobody": "name the component or the person",
    r"but for": "except",
    r"beside(?! the point)": "in addition to, next to",
    r"for ever": "forever, endlessly",
    r"of worth": "useful",
    r"is looked through": "is ignored",
    r"(?:is|are|was|were) (?:said|told(?! to))": "name who reports it",
    r"what (?:runs|ran|stands|stood|serves|served|is (?:had|left|asked|said|paid))": "name it",
    r"(?:of|from|to|by|for|than|all) what (?:it|they|is|are|was|were|has|can|may)": "name it",
    r"knows? nothing of": "leave it out",
    r"has a say|have a say|in words": "plain verb",
    r"undertaker|leash|last words": "the field's term",
}
_WORDS = [(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), hint) for word, hint in WORDS.items()]

_MODULES = """
said told seen held found asked wanted done look want carry ask turn turns scene sight moves learnt
unmet standing present clumps remembered news leftover scattered bill ways strays renting cells
reach reachable promises basis parts typed shown worth where wishes picture story latest term pace
operated seal asking life adopt relay passing choosing unrouted crew bystander agenda live world
table
"""
_NAMES = """
said told seen held found asked wanted done look left_alone looked_at taken_in seen_again known
worth stands short_of
"""
MODULES, NAMES = frozenset(_MODULES.split()), frozenset(_NAMES.split())
"""Modules, functions and classes say what they are or do: no participle or pronoun alone."""


_EXAMPLES = frozenset({Path("deploy/language.py"), Path("tests/unit/docs/test_language.py")})
"""Files that contain the forbidden patterns themselves."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One place to rewrite. line: counted from 1. rule: a short name of the rule, with a hint."""

    path: str
    line: int
    rule: str
    text: str


def _words(path: str, line: int, text: str) -> Iterator[Finding]:
    for pattern, hint in _WORDS:
        for match in pattern.finditer(text):
            at = line + text.count("\n", 0, match.start())
            yield Finding(path, at, f"words ({hint})", match[0])


def _docstrings(path: str, tree: ast.Module) -> Iterator[Finding]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if not isinstance(node, kinds) or not ast.get_docstring(node):
            continue
        literal = node.body[0]
        text = ast.get_docstring(node) or ""
        if OPENINGS.match(text) or re.search(r"(?:^|[.] |\n)Owns\b", text):
            yield Finding(path, literal.lineno, "opening (name the subject)", text[:60])
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from _words(path, node.lineno, node.value)


def _comments(path: str, source: str) -> Iterator[Finding]:
    run = 0
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        alone = token.line.lstrip().startswith("#")
        run = run + 1 if alone and line == last + 1 else 1
        last = line
        if run == LONGEST_COMMENT + 1:
            yield Finding(path, line, f"comment over {LONGEST_COMMENT} lines", token.string)
        yield from _words(path, line, token.string)


def _names(path: str, tree: ast.Module) -> Iterator[Finding]:
    stem = Path(path).stem
    if stem in MODULES:
        yield Finding(path, 1, "module name", stem)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and (
            node.name.strip("_").lower() in NAMES
        ):
            yield Finding(path, node.lineno, "name", node.name)


def check(path: str, source: str) -> list[Finding]:
    """Return every finding in one Python file, by line. Raises SyntaxError if it does not parse."""
    tree = ast.parse(source)
    found = [*_docstrings(path, tree), *_comments(path, source), *_names(path, tree)]
    return sorted(set(found))


def main(arguments: list[str]) -> int:
    """Exit code: 0 without a finding, else 1."""
    roots = [Path(argument) for argument in arguments or ROOMS]
    paths = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))]
    findings = [
        finding
        for path in sorted(paths)
        if path not in _EXAMPLES
        for finding in check(str(path), path.read_text(encoding="utf-8"))
    ]
    for item in findings:
        print(f"{item.path}:{item.line}: {item.rule}: {item.text}")
    if findings:
        print(f"{len(findings)} findings; CONTRIBUTING.md explains the rules")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
