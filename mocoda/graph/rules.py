"""Local rules: edges that exist in some rows only, by distance or by a function of named factors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocoda.data.transitions import as_tensor
from mocoda.engine.errors import InputError, unknown_name
from mocoda.graph.columns import ColumnNames, Factors
from mocoda.graph.local_graph import LocalGraph, MaskFunction

NORMS = {"l1": 1.0, "l2": 2.0, "max": float("inf")}
RULE = ("between", "columns", "within", "norm")
Edge = tuple[str, str]  # parent, child
Columns = tuple[str | int, ...]  # of a factor, by the ends of their names or by numbers
LocalEdges = Callable[[Factors], Mapping[Edge, Tensor]]  # rows by name -> where each edge is there, bool (N,)


class Near(NamedTuple):
    """Two factors that depend on each other where these columns of theirs are closer than `within`."""

    pair: Edge
    columns: tuple[Columns, Columns]  # of the one, of the other; none: all of each
    within: float
    norm: float

    def compared(self, f: Factors) -> tuple[Tensor, Tensor]:
        """The columns of each, (N, width)."""
        one, other = (f[(name, *columns)] for name, columns in zip(self.pair, self.columns, strict=True))
        return one, other

    def holds(self, f: Factors) -> Tensor:
        """Where they are near, bool (N,)."""
        one, other = self.compared(f)
        apart: Tensor = torch.linalg.vector_norm(one - other, self.norm, dim=1)
        return apart < self.within


def near_rules(given: object, graph: LocalGraph, names: ColumnNames) -> LocalEdges | None:
    """All [[near]] tables of a file as one function; None if there are none."""
    if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
        raise InputError("a rule is written under [[near]], in two brackets.")
    rules = [near for number, rule in enumerate(given, 1) for near in _pairs(f"[[near]] {number}", rule, graph)]
    no_rows = Factors(torch.zeros(0, graph.width), graph.factors, names)
    for rule in rules:
        one, other = (columns.shape[1] for columns in rule.compared(no_rows))
        if one != other:
            raise InputError(
                f"[[near]] cannot compare {rule.pair[0]!r} and {rule.pair[1]!r} in {one} and {other} columns; say "
                f'which, such as columns = ["x", "y"] or {{ {rule.pair[0]} = "0:2", {rule.pair[1]} = "1:3" }}.'
            )

    def local(f: Factors) -> dict[Edge, Tensor]:
        found: dict[Edge, Tensor] = {}
        for rule in rules:
            near = rule.holds(f)
            for parent, child in (rule.pair, rule.pair[::-1]):
                if parent not in graph.edges[child]:
                    found[parent, child] = found.get((parent, child), torch.zeros_like(near)) | near
        return found

    return local if rules else None


def _pairs(where: str, rule: Mapping[str, Any], graph: LocalGraph) -> Iterator[Near]:
    for key in rule:
        if key not in RULE:
            raise unknown_name(f"setting of {where} called", key, RULE)
    between, norm = rule.get("between"), rule.get("norm", "l2")
    within: Any = rule.get("within")
    if not isinstance(between, list) or len(between) < 2 or any(between.count(name) > 1 for name in between):
        raise InputError(f"{where} must say between which factors, two or more, got {between!r}.")
    for name in between:
        if name in tuple(graph.action):
            raise InputError(f"{where} is about {name!r}, an action; only state factors are near each other.")
        if name not in graph.children:
            raise unknown_name("state factor", name, graph.children)
    if type(within) not in (int, float) or not 0 < within < float("inf"):
        raise InputError(f"{where} must say within what distance, a number above 0, got {within!r}.")
    if norm not in tuple(NORMS):
        raise unknown_name("norm", norm, NORMS)
    columns = _columns_of(where, between, rule.get("columns", []))
    for one, other in combinations(between, 2):
        if one in graph.edges[other] and other in graph.edges[one]:
            raise InputError(f"{where} adds nothing: in edges, {one!r} and {other!r} already depend on each other.")
        yield Near((one, other), (columns[one], columns[other]), float(within), NORMS[norm])


def _columns_of(where: str, between: list[str], given: object) -> dict[str, Columns]:
    """The columns that a rule compares, by factor: the same of each, or as a table says for each."""
    if isinstance(given, Mapping):
        for name in given:
            if name not in between:
                raise unknown_name(f"factor between those of {where} called", name, between)
        if missing := [name for name in between if name not in given]:
            raise InputError(f"the columns of {where} must be given for each of its factors; {missing[0]!r} has none.")
        return {name: _listed(where, given[name]) for name in between}
    return dict.fromkeys(between, _listed(where, given))


def _listed(where: str, given: object) -> Columns:
    if isinstance(given, str) and (bounds := re.fullmatch(r"(\d{1,6}):(\d{1,6})", given)):
        return tuple(range(int(bounds[1]), int(bounds[2])))
    if not isinstance(given, list) or not all(type(column) in (str, int) for column in given):
        raise InputError(f'the columns of {where} must be a list of names or a range such as "0:3", got {given!r}.')
    return tuple(given)


def local_mask(graph: LocalGraph, names: ColumnNames, local: LocalEdges) -> MaskFunction:
    """rows (N, S + A) -> bool (N, parents, children): the sparsest graph's edges, and the local ones where they are."""

    def mask(rows: Tensor) -> Tensor:
        edges = graph.sparsest.to(rows.device).repeat(len(rows), 1, 1)
        for edge, where in _checked(local(Factors(rows, graph.factors, names)), graph, len(rows)):
            edges[:, graph.parents.index(edge[0]), graph.children.index(edge[1])] |= where.to(rows.device)
        return edges

    return mask


def _checked(found: object, graph: LocalGraph, rows: int) -> Iterator[tuple[Edge, Tensor]]:
    if not isinstance(found, Mapping):
        raise InputError(
            f"local(f) must return a dict, such as {{(parent, child): f[...] < 0.05}}, got {type(found).__name__}."
        )
    for edge, where in found.items():
        if not isinstance(edge, tuple) or len(edge) != 2:
            raise InputError(f"the keys that local(f) returns must be pairs (parent, child), got {edge!r}.")
        parent, child = edge
        for name in edge:
            if name not in graph.parents:
                raise unknown_name("factor", name, graph.parents)
        if child in graph.action:
            raise InputError(f"local(f) names the action {child!r} as a child; only state factors have parents.")
        if parent in graph.edges[child]:
            raise InputError(
                f"local(f) says where {child!r} depends on {parent!r}, but by edges it always does; remove one of them."
            )
        where = as_tensor(where) if isinstance(where, np.ndarray) else where
        if not isinstance(where, Tensor) or where.dtype != torch.bool:
            got = where.dtype if isinstance(where, Tensor) else type(where).__name__
            raise InputError(f"local(f) must return a boolean tensor for {edge}, such as a comparison, got {got}.")
        if tuple(where.shape) != (rows,):
            raise InputError(
                f"local(f) must return one value a row for {edge}, shape ({rows},), got {tuple(where.shape)}."
            )
        yield (parent, child), where
