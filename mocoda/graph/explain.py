"""Turns a learned mask into written rules: a shallow tree on distances and columns predicts where an edge is present.

A rule is fitted to one half of the rows and compared with the mask on the other. People can read it, correct it, and
keep it in a graph file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeClassifier

from mocoda.data.transitions import Array, as_tensor
from mocoda.graph.columns import column_end
from mocoda.graph.learned import LearnedGraph

MIN_ROWS = 10  # of a leaf of a tree; and with an edge, and without it, for a rule to be fitted
MAX_DEPTH = 2
MIN_IMPROVEMENT = 0.005  # share of the rows in which a deeper tree must agree more, to be preferred
Floats = NDArray[np.float64]
Feature = tuple[str, Floats, tuple[int, ...]]  # its name, its values (N,), and if a distance, the columns compared


@dataclass(frozen=True)
class Rule:
    """Where an edge is, in words.

    where   a condition on columns, such as "|hand.xy - cube.xy| < 0.047"
    agrees  the share of the rows in which the rule and the mask agree
    finds   the share of the rows with the edge in which the rule predicts it
    near    columns (numbers within the factors) and distance, if the rule is that two state factors are near
    """

    parent: str
    child: str
    where: str
    agrees: float
    finds: float
    near: tuple[tuple[int, ...], float] | None = None

    def __str__(self) -> str:
        return (
            f"edge {self.parent} -> {self.child} where {self.where} (agrees in {100 * self.agrees:.1f}% of the rows, "
            f"finds {100 * self.finds:.0f}% of those with the edge)"
        )


def explain(graph: LearnedGraph, rows: Array) -> list[Rule]:
    """A rule for every edge that is present in some of the rows (N, S + A), if a short one fits."""
    rows = as_tensor(rows).float()
    mask, table = graph.mask(rows).cpu().numpy(), rows.double().cpu().numpy()
    rules = []
    for c, child in enumerate(graph.children):
        for p, parent in enumerate(graph.parents):
            there = mask[:, p, c]
            if parent in graph.edges[child] or min(there[::2].sum(), (~there[::2]).sum()) < MIN_ROWS:
                continue
            rules.append(_rule(graph, parent, child, table, there))
    return rules


def _rule(graph: LearnedGraph, parent: str, child: str, rows: Floats, there: NDArray[np.bool_]) -> Rule:
    names, values, near = zip(*_features(graph, parent, child, rows), strict=True)
    table = np.stack(values, 1)
    best: Rule | None = None
    for depth in range(1, MAX_DEPTH + 1):
        tree = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=MIN_ROWS, random_state=0)
        tree.fit(table[::2], there[::2])
        said, true = tree.predict(table[1::2]), there[1::2]
        agrees, finds = float((said == true).mean()), float(said[true].mean()) if true.any() else 0.0
        if best is not None and agrees < best.agrees + MIN_IMPROVEMENT:
            break
        leaves = list(_leaves(tree, names))
        if not leaves:
            continue
        compared = near[int(tree.tree_.feature[0])]
        is_distance = depth == 1 and compared and " < " in leaves[0]
        distance = (compared, float(tree.tree_.threshold[0])) if is_distance else None
        best = Rule(parent, child, " or ".join(leaves), agrees, finds, distance)
    return best or Rule(parent, child, "no short rule fits", float((~there).mean()), 0.0)


def _features(graph: LearnedGraph, parent: str, child: str, rows: Floats) -> Iterator[Feature]:
    """The features of a rule; the columns of distances are counted within the factors."""
    columns = (*graph.names.state, *graph.names.action)
    mine, theirs = graph.factors[child], graph.factors[parent]
    if child != parent and parent in graph.state:
        apart = rows[:, mine[: len(theirs)]] - rows[:, theirs[: len(mine)]]
        for several in chain.from_iterable(combinations(range(apart.shape[1]), size) for size in (1, 2, 3)):
            ends = "".join(column_end(columns[theirs[i]], parent) for i in several)
            name = f"|{parent}.{ends} - {child}.{ends}|" if len(theirs) > 1 else f"|{parent} - {child}|"
            yield name, np.linalg.norm(apart[:, several], axis=1), several
    if len(theirs) > 1:
        yield f"|{parent}|", np.linalg.norm(rows[:, theirs], axis=1), ()
    for column in dict.fromkeys((*mine, *theirs)):
        yield columns[column], rows[:, column], ()


def _leaves(tree: Any, names: Sequence[str]) -> Iterator[str]:
    """The conditions under which a tree predicts the edge."""
    nodes, yes = tree.tree_, list(tree.classes_).index(True)

    def below(node: int, conditions: tuple[str, ...]) -> Iterator[str]:
        if nodes.children_left[node] < 0:
            if nodes.value[node][0].argmax() == yes:
                yield " and ".join(conditions)
            return
        name, limit = names[nodes.feature[node]], f"{nodes.threshold[node]:.3g}"
        yield from below(nodes.children_left[node], (*conditions, f"{name} < {limit}"))
        yield from below(nodes.children_right[node], (*conditions, f"{name} > {limit}"))

    return below(0, ())


def rules_as_toml(graph: LearnedGraph, rules: Sequence[Rule]) -> str:
    """A TOML graph file with the rules that are distances; all other edges are written as if always present."""
    written = partial(json.dumps, ensure_ascii=False)  # strings and lists are the same in JSON and TOML
    nears: dict[frozenset[str], tuple[Rule, tuple[int, ...], float]] = {}
    edges = {child: list(graph.edges[child]) for child in graph.children}
    others = []
    for rule in rules:
        pair = frozenset((rule.parent, rule.child))
        if rule.near is None:
            edges[rule.child].append(rule.parent)
            others.append(f"# {rule}: written above as an edge everywhere")
        elif pair not in nears or rule.near[1] > nears[pair][2]:  # one for both directions: the wider distance is kept
            nears[pair] = (rule, *rule.near)
    lines = ["# Proposed from a learned graph: read it, correct it, and check it against the data."]
    for kind in ("state", "action"):
        lines += [f"[{kind}]", *(f"{written(name)} = {list(graph.own_columns(name))}" for name in getattr(graph, kind))]
    lines += ["[edges]", *(f"{written(child)} = {written(parents)}" for child, parents in edges.items()), *others]
    for rule, columns, distance in nears.values():
        if rule.parent not in edges[rule.child] or rule.child not in edges[rule.parent]:
            lines += [f"# {rule}", "[[near]]", f"between = {written([rule.parent, rule.child])}"]
            lines += [f"columns = {list(columns)}", f"within = {distance:.6g}"]
    return "\n".join(lines) + "\n"
