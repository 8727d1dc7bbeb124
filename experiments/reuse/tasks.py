"""Two tasks whose answer needs a second look at positions that were looked at already.

`two_hop`: positions hold pairs a → b of a random permutation f; questions, ? → a, ask for f(a) or
for f(f(a)), and only the latter count. One look finds a → b; a second one, at the pair of b, the
answer.

`names`: real text with labels read from its syntax, the functions of Python's standard library.
Where a name is used, say what introduced it: a parameter, an assignment, a loop, or nothing in the
function (`except … as` and imports inside it count as nothing). Names are drawn anew for each
function, so that `self` says nothing. One look finds where the name stood first; a second one, what
stands around it there.
"""

from __future__ import annotations

import ast
import io
import keyword
import random
import sysconfig
import tokenize
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

NO_LABEL = -100
SYMBOLS, ASKED = 16, 8


class Batch(NamedTuple):
    tokens: Tensor  #: (batch, position, 2), two tokens a position that are added up
    keep: Tensor  #: (batch, position), True where real
    labels: Tensor  #: (batch, position), `NO_LABEL` where nothing is asked


class TwoHop:
    """f(f(a)) of a permutation that is given as pairs, in another order each time."""

    vocabulary, classes = 2 * SYMBOLS + 2, SYMBOLS

    def batch(self, size: int, random: torch.Generator, train: bool) -> Batch:
        """Examples, drawn."""
        order = torch.stack([torch.randperm(SYMBOLS, generator=random) for _ in range(size)])
        value = torch.stack([torch.randperm(SYMBOLS, generator=random) for _ in range(size)])
        pairs = torch.stack([order, SYMBOLS + value.gather(1, order)], -1)
        asked = torch.randint(SYMBOLS, (size, ASKED), generator=random)
        twice = (torch.arange(ASKED) % 2 == 1).expand(size, -1)
        questions = torch.stack([2 * SYMBOLS + twice.long(), SYMBOLS + asked], -1)
        tokens = torch.cat([pairs, questions], 1)
        once = value.gather(1, asked)
        answers = torch.where(twice, value.gather(1, once), once if train else NO_LABEL)
        labels = torch.cat([torch.full_like(order, NO_LABEL), answers], 1)
        return Batch(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool), labels)


ROLES = ("outside", "parameter", "assigned", "loop")
LONGEST, NAMES = 64, 48
_SIGNS = [*sorted(keyword.kwlist), *"()[]{}:;,.=+-*/%@&|^~<>", "==", "!=", "<=", ">=", "->", ":="]
_SIGNS += ["**", "//", "+=", "-=", "*=", "|=", "<<", ">>", "..."]
_OTHERS = ["<pad>", "<number>", "<text>", "<line>", "<in>", "<out>", "<sign>"]
_WORDS = {word: number for number, word in enumerate([*_OTHERS, *_SIGNS])}


class Function(NamedTuple):
    """One function: tokens (a name is its number, from −1 down) and the role asked for, or −100."""

    tokens: list[int]
    labels: list[int]


class Names:
    """What introduced a name, in functions of the standard library; of `every` so many files."""

    vocabulary, classes = len(_WORDS) + NAMES + 1, len(ROLES)

    def __init__(self, every: int = 1) -> None:
        self.train: list[Function] = []
        self.test: list[Function] = []
        folder = Path(sysconfig.get_paths()["stdlib"])
        for path in sorted(folder.glob("*.py"))[::every]:
            held_out = zlib.crc32(path.name.encode()) % 5 == 0  # files are whole in one of both
            found = functions(path.read_text(encoding="utf-8"))
            (self.test if held_out else self.train).extend(found)

    def batch(self, size: int, random: torch.Generator, train: bool) -> Batch:
        """Functions, drawn, each with names of its own."""
        from_where = self.train if train else self.test
        chosen = torch.randint(len(from_where), (size,), generator=random).tolist()
        rows = [from_where[one] for one in chosen]
        length = max(len(row.tokens) for row in rows)
        tokens = torch.zeros(size, length, 2, dtype=torch.long)
        labels = torch.full((size, length), NO_LABEL)
        for place, row in enumerate(rows):
            drawn = (len(_WORDS) + 1 + torch.randperm(NAMES, generator=random)).tolist()
            numbers = [token if token >= 0 else drawn[-1 - token] for token in row.tokens]
            tokens[place, : len(numbers), 0] = torch.tensor(numbers)
            labels[place, : len(numbers)] = torch.tensor(row.labels)
        return Batch(tokens, tokens[..., 0] > 0, labels)


def functions(source: str) -> Iterator[Function]:
    """The functions of a module that have no function inside, at most `LONGEST` tokens of each."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            continue
        inside = [inner for inner in ast.walk(node) if inner is not node]
        if any(isinstance(inner, ast.FunctionDef | ast.Lambda | ast.ClassDef) for inner in inside):
            continue
        roles = uses(node)
        text = "".join(lines[node.lineno - 1 : node.end_lineno])
        found = _tokens(text, node.lineno, roles)
        if found is not None:
            yield found


def uses(function: ast.FunctionDef) -> dict[tuple[int, int], int]:
    """Line and column of each use of a name, and the role of what introduced it first."""
    first: dict[str, tuple[tuple[int, int], int]] = {}
    loops: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.For | ast.comprehension):
            loops |= {id(inner) for inner in ast.walk(node.target)}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            first[node.arg] = ((0, 0), ROLES.index("parameter"))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            role = ROLES.index("loop" if id(node) in loops else "assigned")
            here = (node.lineno, node.col_offset)
            if node.id not in first or here < first[node.id][0]:
                first[node.id] = (here, role)
    return {
        (node.lineno, node.col_offset): first.get(node.id, ((0, 0), 0))[1]
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _tokens(text: str, line: int, roles: dict[tuple[int, int], int]) -> Function | None:
    names: dict[str, int] = {}
    tokens, labels = [], []
    indent = len(text) - len(text.lstrip())
    lines = [row[indent:] if row[:indent].isspace() else row for row in text.splitlines(True)]
    try:
        read = list(tokenize.generate_tokens(io.StringIO("".join(lines)).readline))
    except (tokenize.TokenError, IndentationError):
        return None
    for token in read:
        number = _number(token, names)
        if number is None:
            continue
        tokens.append(number)
        place = (token.start[0] - 1 + line, token.start[1] + indent)
        labels.append(roles.get(place, NO_LABEL) if number < 0 else NO_LABEL)
    tokens, labels = tokens[:LONGEST], labels[:LONGEST]
    if len(names) > NAMES or all(label == NO_LABEL for label in labels):
        return None
    return Function(tokens, labels)


def _number(token: tokenize.TokenInfo, names: dict[str, int]) -> int | None:
    """A token as a number; names are numbered from −1 down; None for what is left out."""
    if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
        return None
    if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
        return -1 - names.setdefault(token.string, len(names))
    kinds = {
        tokenize.NUMBER: "<number>",
        tokenize.STRING: "<text>",
        tokenize.NEWLINE: "<line>",
        tokenize.INDENT: "<in>",
        tokenize.DEDENT: "<out>",
    }
    return _WORDS.get(kinds.get(token.type, token.string), _WORDS["<sign>"])


TASKS = {"two_hop": TwoHop, "names": Names}


def majority(task: TwoHop | Names) -> float:
    """What always saying the most frequent label is right in."""
    generator = torch.Generator().manual_seed(random.Random(0).randrange(1 << 30))
    labels = task.batch(512, generator, train=False).labels
    counts = torch.bincount(labels[labels >= 0], minlength=task.classes)
    return float(counts.max() / counts.sum())
