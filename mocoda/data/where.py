"""Conditions on the rows of a table, such as "box1.x > 1.9 and confirmed"; they are read, and never run as Python.

A condition compares numbers by <, <=, >, >=, == (or =) and !=, also in chains (0.1 < x < 0.5), and combines comparisons
by `and`, `or`, `not` and parentheses. Numbers are columns and constants, with + - * / **, abs(a), min(a, b),
max(a, b) and norm(a, b, ...). A name alone is true above 0.5. Names that are no words, such as `pos/x`, are quoted.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from keyword import iskeyword

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name

NEXT = "next."  # before the name of a state column: its next value
EQUAL = 1e-3  # how far apart numbers that a constraint calls equal may be, absolutely and relatively
NO_WORD = re.compile(r"[A-Za-z_][\w.]*\.\d[\w.]*")  # a name such as gear.0, which Python cannot read
BACKQUOTES = "Write names that are no words in backquotes, such as {}."
QUOTED_OR_EQUALS = re.compile(r"""`[^`]*`|'[^']*'|"[^"]*"|(?<![<>=!:])=(?!=)""")
OPERATORS: dict[type, Callable[..., Tensor]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, tuple[int, Callable[..., Tensor]]] = {  # with how many arguments they need at least
    "min": (2, lambda *given: reduce(torch.minimum, given)),
    "max": (2, lambda *given: reduce(torch.maximum, given)),
    "norm": (1, lambda *given: reduce(torch.hypot, map(torch.abs, given))),
}


@dataclass(frozen=True)
class Condition:
    """An expression that holds in some rows: `Condition("box1.x > 1.9")(columns_of(table))` is bool (N,).

    text       the expression
    tolerance  how far apart equal numbers may be, absolutely and relatively
    columns    names of the columns of rows (N, S + A), if it is about nothing else and is called with rows
    """

    text: str
    tolerance: float = 0.0
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _ = self.names  # raises unless the text is a condition

    def __call__(self, given: Mapping[str, Tensor] | Tensor) -> Tensor:
        """The rows in which it holds, bool (N,), given columns (N,) by name, or rows (N, S + A)."""
        columns = dict(zip(self.columns, given.T, strict=True)) if isinstance(given, Tensor) else given
        for name in self.names:
            if name not in columns:
                known = [other for other in columns if name.startswith(NEXT) or not other.startswith(NEXT)]
                odd = [quoted(other) for other in known if other in self.text and quoted(other) != other]
                quote = f" {BACKQUOTES.format(odd[0])}" if odd else ""
                raise InputError(f"{unknown_name('column', name, known)}{quote}")
        return torch.broadcast_to(self._holds(self._tree, columns), next(iter(columns.values())).shape)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns that it mentions."""
        mentioned: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros(0))
        try:
            self._holds(self._tree, mentioned)
            ast.unparse(self._tree)
        except (RecursionError, OverflowError) as error:
            raise InputError(f"{self.text[:40]!r}… is nested too deeply, or has too large a number.") from error
        return tuple(mentioned)

    @cached_property
    def conjuncts(self) -> tuple[Condition, ...]:
        """The conditions that `and` combines into this one; itself alone if it has none."""
        if not (isinstance(self._tree, ast.BoolOp) and isinstance(self._tree.op, ast.And)):
            return (self,)
        parts = [replace(self, text=ast.unparse(part)) for part in self._tree.values]
        return tuple(one for part in parts for one in part.conjuncts)

    @cached_property
    def _tree(self) -> ast.expr:
        text = QUOTED_OR_EQUALS.sub(
            lambda token: "==" if token[0] == "=" else repr(token[0][1:-1]), " ".join(self.text.splitlines()).strip()
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python's doubts about, for instance, "1and 2"
                return ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            place = getattr(error, "offset", 0) or len(text) + 1
            at = f"at {text[place - 1 :]!r}" if place <= len(text) else "at its end"
            quote = f" {BACKQUOTES.format(quoted(odd[0]))}" if (odd := NO_WORD.search(self.text)) else ""
            raise InputError(
                f"the condition {self.text[:200]!r} cannot be read: {getattr(error, 'msg', error)} {at}.{quote}"
            ) from None

    def _holds(self, node: ast.expr, columns: Mapping[str, Tensor]) -> Tensor:
        match node:
            case ast.BoolOp(op, parts):
                combine = operator.and_ if isinstance(op, ast.And) else operator.or_
                return reduce(combine, [self._holds(part, columns) for part in parts])
            case ast.UnaryOp(ast.Not(), part):
                return ~self._holds(part, columns)
            case ast.Compare(left, ops, rest):
                pairs = pairwise(_number(part, columns) for part in [left, *rest])
                return reduce(operator.and_, [self._compare(op, *pair) for op, pair in zip(ops, pairs, strict=True)])
        if _name(node) is None:
            raise InputError(f"{ast.unparse(node)!r} is neither true nor false: compare it, as in 'box1.x > 0.5'.")
        return _number(node, columns) > 0.5

    def _compare(self, op: ast.cmpop, left: Tensor, right: Tensor) -> Tensor:
        if type(op) in OPERATORS:
            return OPERATORS[type(op)](left, right)
        if not isinstance(op, ast.Eq | ast.NotEq):
            raise InputError(f"conditions compare by <, <=, >, >=, == and !=; {self.text!r} does otherwise.")
        equal = left == right
        if self.tolerance:
            equal = (left - right).abs() <= self.tolerance * (1 + right.abs())
        return equal if isinstance(op, ast.Eq) else ~equal


def quoted(name: str) -> str:
    """A column's name as conditions write it: in backquotes unless its parts are words."""
    return name if all(part.isidentifier() and not iskeyword(part) for part in name.split(".")) else f"`{name}`"


def columns_of(table: Transitions) -> dict[str, Tensor]:
    """What conditions on a table's rows are about, (N,) each: reward, terminal, episode, step, provenance, all columns
    by name, and next states by "next." and the name. A column hides anything else of that name.
    """
    names, states = table.columns, table.state.shape[1]
    own = {name: getattr(table, name) for name in ("reward", "terminal", "episode", "step")}
    found = {name: array for name, array in own.items() if array is not None} | dict(table.provenance)
    found |= {NEXT + name: column for name, column in zip(names[:states], table.next_state.T, strict=True)}
    return found | dict(zip(names, [*table.state.T, *table.action.T], strict=True))


def _name(node: ast.expr) -> str | None:
    """The column that a node names: box1.x, or a quoted name."""
    match node:
        case ast.Name(name) | ast.Constant(str(name)):
            return name
        case ast.Attribute(ast.Name() | ast.Attribute() as first, end):
            begin = _name(first)
            return None if begin is None else f"{begin}.{end}"
    return None


def _number(node: ast.expr, columns: Mapping[str, Tensor]) -> Tensor:
    """The number in each row, or a single one, which takes on the precision of the column that it meets."""
    if (name := _name(node)) is not None:
        column = columns[name]
        return column if column.is_floating_point() else column.double()
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            return torch.tensor(float(value), dtype=torch.float64)
        case ast.UnaryOp(op, part) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_number(part, columns))
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_number(left, columns), _number(right, columns))
        case ast.Call(ast.Name("abs"), [given], []):
            return _number(given, columns).abs()
        case ast.Call(ast.Name(called), given, []) if len(given) >= FUNCTIONS.get(called, (torch.inf,))[0]:
            return FUNCTIONS[called][1](*(_number(one, columns) for one in given))
    raise InputError(
        f"{ast.unparse(node)!r} is no number. Numbers are columns and constants, with + - * / **, abs(a), min(a, b), "
        "max(a, b) and norm(a, b, ...)."
    )
