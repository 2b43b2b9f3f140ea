"""Graphs written in a short Python or TOML file, over the data's own column names.

A Python file is its author's program and is run, in this process, each time it is loaded; a TOML file runs nothing.
The result depends on the file's text and the column names alone, so another process can load the same graph.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocoda.data.formats.arrays import noted
from mocoda.data.transitions import Transitions, as_tensor
from mocoda.data.where import EQUAL, Condition
from mocoda.engine.errors import InputError, check_names
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.columns import ColumnNames, Factors, as_factors, factors_by_name
from mocoda.graph.learned import load_learned
from mocoda.graph.local_graph import LocalGraph, MaskFunction

MAX_BYTES = 1_000_000  # a graph is a page of text; a longer file is something else
TABLES = ("state", "action", "edges", "relative", "absent")
GOALS = ("environment", "achieved", "tolerance")
NORMS = {"l1": 1.0, "l2": 2.0, "max": float("inf")}
RULE = ("between", "columns", "within", "norm")


class Signature(NamedTuple):
    """What a function of a Python file takes, and the shape of the tensor that it returns, if any."""

    takes: tuple[str, ...]
    shape: tuple[str, ...] = ()
    boolean: bool = False


FUNCTIONS = {
    "local": Signature(("f",)),
    "reward": Signature(("state", "action", "next_state"), ("N",)),
    "terminal": Signature(("state", "action", "next_state"), ("N",), boolean=True),
    "goals": Signature(("n", "seed", "device"), ("N", "G")),
    "achieved": Signature(("state",), ("N", "G")),
    "reached": Signature(("achieved", "goal"), ("N",), boolean=True),
    "next_goal": Signature(("achieved", "goal"), ("G",)),
    "features": Signature(("rows",), ("N", "F")),
    "region": Signature(("rows",), ("N",), boolean=True),
    "step": Signature(("rows",), ("N", "S")),
    "put": Signature(("env", "state")),
}

Edge = tuple[str, str]  # parent, child
LocalEdges = Callable[[Factors], Mapping[Edge, Tensor]]  # rows by name -> where each edge is there, bool (N,)


@dataclass(frozen=True, eq=False)
class FileTask:
    """The graph of a file, and the parts of a task that the file defines; the others are None.

    name         the file's name, less its ending
    fingerprint  a short hash of the file's text
    label        (state, action, next_state) -> reward (N,) and terminal, bool (N,); with `achieved`, (..., goal)
    goals        (n, seed=, device=) -> goals (n, G) of the target task
    achieved     state (N, S) -> the goals (N, G) that are reached there
    features     rows (N, S + A) -> the features (N, F) that matter for the task
    region       rows (N, S + A) -> which rows matter, bool (N,)
    step         rows (N, S + A) -> the true next states (N, S), for `mocoda audit`
    put          (env, state (S,)) puts a Gymnasium environment, without its wrappers, in a state
    box          the lowest and the highest row, (S + A,) each
    reached      (achieved, goal) -> whether what was achieved is as good as the goal, (N, G) each, bool (N,)
    next_goal    (achieved, goal) -> the goal to pursue first, in which one thing has yet to move, (G,) each; unless the
                 file defines it, things move in the order of the graph, if `achieved` names columns of several factors
    environment  where agents are evaluated: a Gymnasium id, or a function that makes an environment
    """

    name: str
    graph: LocalGraph
    fingerprint: str
    label: Callable[..., tuple[Tensor, Tensor]] | None = None
    goals: Callable[..., Tensor] | None = None
    achieved: Callable[[Tensor], Tensor] | None = None
    features: Callable[[Tensor], Tensor] | None = None
    region: Callable[[Tensor], Tensor] | None = None
    step: Callable[[Tensor], Tensor] | None = None
    put: Callable[[Any, Any], object] | None = None
    box: tuple[Tensor, Tensor] | None = None
    reached: Callable[[Tensor, Tensor], Tensor] | None = None
    next_goal: Callable[[Tensor, Tensor], Tensor] | None = None
    environment: str | Callable[..., Any] | None = None

    @property
    def constraints(self) -> Mapping[str, MaskFunction]:
        """What holds in every state, by name: rows (N, S + A) -> bool (N,)."""
        return self.graph.constraints


def load_graph(path: str | Path, data: Transitions | ColumnNames | None = None) -> LocalGraph:
    """The graph that a Python or TOML file describes, over the columns of `data`, or that `learn_graph` made.

    A learned graph, FILE.graph, knows its columns: data is not needed, and is refused if its columns have other names.
    """
    if data is not None:
        return load_task(path, data).graph
    if Path(path).suffix != ".graph":
        raise InputError(f"a graph that is written by column names needs the data: load_graph({str(path)!r}, data).")
    return load_learned(path)


def load_task(path: str | Path, data: Transitions | ColumnNames, **given: Any) -> FileTask:
    """The graph, with the rewards, goals and hints that a graph file may define beside it.

    given  `environment`, `achieved` and `tolerance`, which take the place of what the file says; None: as it says
    """
    file = Path(path)
    names = data if isinstance(data, ColumnNames) else ColumnNames.of(data)
    absent = dict.fromkeys([] if isinstance(data, ColumnNames) else noted(data.source, "absent") or [])
    learned = load_learned(file, names) if file.suffix == ".graph" else None
    text = file.read_bytes() if learned else _text(file)
    # Functions and environments may import modules that lie beside the file; it comes last, so that none hides another.
    if (folder := str(file.absolute().parent)) not in sys.path:
        sys.path.append(folder)
    with _errors_name(file):
        defined: dict[str, Any] = {}
        if learned is None:
            defined = _read_toml(text) if file.suffix == ".toml" else _run(file, text)
        defined |= {name: value for name, value in given.items() if value is not None}
        functions = _functions(file, defined)
        if learned is None:
            graph = _graph(defined, names, absent)
        else:
            graph = replace(learned, absent={**learned.absent, **absent})
        rules = near_rules(defined["near"], graph, names) if file.suffix == ".toml" and "near" in defined else None
        if local := functions.pop("local", rules):
            graph = replace(graph, local=local_mask(file, graph, names, local))
        graph = replace(graph, constraints=_constraints(file, defined.get("constraints", ()), names))
        task = _task(file, defined, functions, graph, names)
    return FileTask(file.stem, graph, hashlib.sha256(text).hexdigest()[:16], **task)


def load_factors(path: str | Path, names: ColumnNames) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The [state] and [action] tables of a TOML file, None if it has none; its other tables are ignored."""
    file = Path(path)
    if file.suffix != ".toml":
        raise InputError(f"factors are read from a TOML file (.toml) with [state] and [action], got {str(file)!r}.")
    with _errors_name(file):
        tables = _read_toml(_text(file))
        found = {kind: as_factors(kind, tables[kind], names) for kind in ("state", "action") if kind in tables}
        if not found:
            raise InputError('it has neither [state] nor [action]; list the factors there, such as ball = ["ball.x"].')
    return found.get("state"), found.get("action")


def _text(file: Path) -> bytes:
    if file.suffix not in (".py", ".toml"):
        raise InputError(
            f"{str(file)!r} is neither Python (.py) nor TOML (.toml), the two ways to write a graph, nor a learned "
            "graph (.graph)."
        )
    if not file.is_file():
        raise InputError(f"there is no file {str(file)!r}; write the graph as Python (.py) or TOML (.toml).")
    if file.stat().st_size > MAX_BYTES:
        raise InputError(f"{str(file)!r} has over {MAX_BYTES:,} bytes; a graph is a page of text. Is it another file?")
    return file.read_bytes()


@contextmanager
def _errors_name(file: Path) -> Iterator[None]:
    """Input errors raised inside name the file, once."""
    try:
        yield
    except InputError as error:
        named = f"{str(file)!r}: "
        raise InputError(named + str(error).removeprefix(named)) from error.__cause__


def _read_toml(text: bytes) -> dict[str, Any]:
    try:
        tables = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"it is not TOML: {error}.") from error
    for key, value in tables.items():
        if key in (*FUNCTIONS, "box") and not (key == "achieved" and isinstance(value, list)):
            raise InputError(f"a TOML file cannot define {key}; write the graph in Python (.py) instead.")
    check_names("setting", tables, (*TABLES, *GOALS, "near", "parent_sets", "constraints"))
    return tables


def _run(file: Path, text: bytes) -> dict[str, Any]:
    """The names that a Python file defines. It is not imported, so nothing is cached here or beside the file."""
    try:
        code = compile(text, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else "it"
        raise InputError(f"{where} is not Python: {getattr(error, 'msg', error)}.") from error
    # No module can have this name: one that could be imported would be run again to send functions to other processes.
    defined: dict[str, Any] = {"__name__": f"<{file.name}>", "__file__": str(file)}
    try:
        exec(code, defined)
    except (Exception, SystemExit) as error:
        raise InputError(f"running it raised {_raised(error, file)}.") from error
    for name, value in defined.items():  # a misspelt name, such as `rewards`, would otherwise be ignored silently
        known = FUNCTIONS if isinstance(value, FunctionType) else TABLES if isinstance(value, dict) else ()
        missing = [] if name in known or name.startswith("_") else [other for other in known if other not in defined]
        if near := difflib.get_close_matches(name, missing, n=1, cutoff=0.8):
            raise InputError(
                f"{name!r} means nothing in a graph file. Did you mean {near[0]!r}? If not, call it {'_' + name!r}."
            )
    return defined


def _raised(error: BaseException, file: Path) -> str:
    return f"{type(error).__name__}{_line(error, file)}: {str(error).rstrip('.')}"


def _line(error: BaseException, file: Path) -> str:
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    return f" in line {lines[-1]}" if lines else ""


def _graph(defined: Mapping[str, Any], names: ColumnNames, absent: dict[str, None]) -> LocalGraph:
    """The graph of a file; `absent` are the factors that are absent in some rows, as far as the data knows."""
    edges, groups, relative = defined.get("edges"), defined.get("parent_sets"), defined.get("relative", {})
    if edges is None:
        raise InputError("it has no edges; list for every state factor the factors it depends on.")
    if not isinstance(edges, Mapping) or not all(_are_names(parents) for parents in edges.values()):
        raise InputError(f"edges must map each state factor to a list of factors, got {edges!r}.")
    if groups is not None and not (isinstance(groups, list | tuple) and all(_are_names(group) for group in groups)):
        raise InputError(f"parent_sets must be a list of lists of factors, got {groups!r}.")
    if not isinstance(relative, Mapping):
        raise InputError(
            f"relative must map a column's name to that of the column it is measured from, got {relative!r}."
        )
    columns = (*names.state, *names.action)
    check_names("column", (*relative, *relative.values()), columns)
    state = as_factors("state", defined["state"], names) if "state" in defined else factors_by_name(names.state)
    by_name = factors_by_name(names.action)  # the action is one factor, unless edges name these
    named = {*chain(*edges.values())} & by_name.keys() and not state.keys() & by_name.keys()
    graph = LocalGraph(
        state=state,
        action=as_factors("action", defined.get("action", by_name if named else {"action": slice(None)}), names),
        edges={child: tuple(parents) for child, parents in edges.items()},
        given_parent_sets=None if groups is None else [tuple(group) for group in groups],
        relative={columns.index(column): columns.index(origin) for column, origin in relative.items()},
    )
    return replace(graph, absent=_absent(defined["absent"], graph, names) if "absent" in defined else absent)


def _absent(given: object, graph: LocalGraph, names: ColumnNames) -> dict[str, int | None]:
    """Factor -> the column that is 0 where it is absent, or None if all of its columns are."""
    if isinstance(given, list | tuple) and _are_names(given):
        return dict.fromkeys(given)
    if not isinstance(given, Mapping) or not _are_names([*given, *given.values()]):
        raise InputError(
            'absent must list the factors that are absent where all of their columns are 0, such as ["car1", "car2"], '
            f'or name the column that is 0 there, such as {{"car1": "present"}}, got {given!r}.'
        )
    factors = Factors(torch.arange(graph.width)[None], graph.factors, names)
    return {name: int(factors[name, column]) for name, column in given.items()}


def _constraints(file: Path, given: object, names: ColumnNames) -> dict[str, MaskFunction]:
    """The constraints of a file by their text, or by their function's name."""
    found: dict[str, MaskFunction] = {}
    columns = (*names.state, *names.action)
    for one in given if isinstance(given, list | tuple) else (given,):
        if isinstance(one, str):
            found[one] = Condition(one, EQUAL, columns)
            found[one](torch.zeros(1, len(columns)))  # raises if there is no such column
        elif callable(one):
            name = getattr(one, "__name__", type(one).__name__)
            found[f"{name} ({len(found) + 1})" if name in found else name] = partial(_called, file, name, one)
        else:
            raise InputError(
                "constraints must be a list of conditions, such as 'cup.z >= 0', or in Python also of functions of "
                f"rows, got {one!r}."
            )
    return found


def _are_names(given: object) -> bool:
    return isinstance(given, list | tuple | set | frozenset) and all(isinstance(name, str) for name in given)


# --- functions, rewards and goals


def _functions(file: Path, defined: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for name, (takes, *_) in FUNCTIONS.items():
        if name not in defined or (name == "achieved" and not callable(defined[name])):  # names of columns
            continue
        if name in ("reward", "terminal") and _about_goals(defined):
            takes = (*takes, "goal")
        wanted, function = f"{name}({', '.join(takes)})", defined[name]
        if not callable(function):
            raise InputError(f"{name} must be a function, {wanted}, got {type(function).__name__}.")
        try:
            inspect.signature(function).bind(*takes)
        except TypeError:
            raise InputError(f"expected {wanted}, got {name}{inspect.signature(function)}.") from None
        except ValueError:  # a compiled function has no signature
            pass
        found[name] = partial(_called, file, name, function)
    needs_achieved = ((name, "achieved") for name in ("reached", "goals", "next_goal"))
    for name, needed in (("terminal", "reward"), *needs_achieved):
        if name in found and needed not in (*found, *filter(defined.__contains__, GOALS)):
            raise InputError(f"it defines {name}, which is of no use without {needed}; define both.")
    return found


def _about_goals(defined: Mapping[str, Any]) -> bool:
    reward = defined.get("reward")
    four = isinstance(reward, FunctionType) and len(inspect.signature(reward).parameters) == 4
    return "achieved" in defined or four


def _called(file: Path, name: str, function: Callable[..., Any], *given: Any) -> Any:
    """What a function of the file returns, checked by its signature."""
    try:
        found = function(*given)
    except InputError as error:  # of ours: a name that f does not have
        raise InputError(f"{str(file)!r}: {name}{_line(error, file)}: {error}") from None
    except Exception as error:
        sizes = ", ".join(
            f"{len(one)} rows of {one.rows.shape[1]} columns" if isinstance(one, Factors) else str(tuple(one.shape))
            for one in given
            if isinstance(one, Factors | Tensor)
        )
        raised = f"{name} raised {_raised(error, file)}. It was given {sizes or given}."
        raise InputError(f"{str(file)!r}: {raised}") from error
    _, shape, boolean = FUNCTIONS.get(name, FUNCTIONS["region"])
    if not shape:
        return found
    rows, device = (given[0], given[2]) if name == "goals" else (len(given[0]), given[0].device)
    array = as_tensor(found).to(device) if isinstance(found, Tensor | np.ndarray) else None
    if array is None or (boolean and array.dtype != torch.bool) or array.ndim != len(shape) or len(array) != rows:
        one = "columns" if name == "next_goal" else "rows"
        wanted = f"({', '.join(shape)}{',' if len(shape) == 1 else ''}), {shape[0]} = {rows} {one}"
        kind = "a boolean tensor, such as a comparison gives," if boolean else "a tensor"
        got = type(found).__name__ if array is None else f"{array.dtype} of shape {tuple(array.shape)}"
        raise InputError(f"{str(file)!r}: {name} must return {kind} of shape {wanted}, got {got}.")
    return array


def _task(
    file: Path,
    defined: Mapping[str, Any],
    functions: Mapping[str, Callable[..., Any]],
    graph: LocalGraph,
    names: ColumnNames,
) -> dict[str, Any]:
    """The members of a FileTask that the file defines, beside its graph."""
    environment, wanted, tolerance = map(defined.get, GOALS)
    if environment is not None and not (callable(environment) or (isinstance(environment, str) and environment)):
        raise InputError(
            f"environment must be a Gymnasium id, such as 'my_module:Pushing-v0', or a function, got {environment!r}."
        )
    task: dict[str, Any] = dict(functions) | {"environment": environment, "box": _box(defined.get("box"), graph)}
    groups: list[list[int]] | None = None  # of what is achieved, by factor
    if wanted is not None and "achieved" not in functions:
        if not _are_names(wanted) or not wanted or isinstance(wanted, set | frozenset):
            raise InputError(f"achieved must be a list of columns of the state, got {wanted!r}.")
        check_names("column of the state called", wanted, names.state)
        columns = [names.state.index(name) for name in wanted]
        owned = ([i for i, column in enumerate(columns) if column in graph.factors[child]] for child in graph.children)
        groups = [own for own in owned if own]
        task["achieved"] = partial(_columns, columns)
    if tolerance is not None:
        if wanted is None:
            raise InputError("tolerance is the distance at which a goal is reached: name the columns in achieved, too.")
        if type(tolerance) not in (int, float) or not 0 < tolerance < float("inf"):
            raise InputError(f"tolerance must be a distance, a number above 0, got {tolerance!r}.")
        if "reached" in functions:
            raise InputError("tolerance and reached both say when a goal is reached; remove one of them.")
        task["reached"] = partial(near, float(tolerance), groups)
    if groups is not None and len(groups) > 1 and "reached" in task and "next_goal" not in task:
        task["next_goal"] = partial(first_to_move, groups, task["reached"])
    reward, terminal = (task.pop(name, None) for name in ("reward", "terminal"))
    about_goals = _about_goals(defined)  # what is defined besides may hold things that other processes cannot be sent

    def label(state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if goal is None and about_goals:
            raise InputError(
                f"{str(file)!r}: its reward is about goals, and none are known. Define goals(n, seed, device), name an "
                "environment that shows goals, or draw them from the data."
            )
        if goal is not None and not about_goals:
            raise InputError(
                f"{str(file)!r}: its reward is not about goals; leave them out, or let it take a fourth argument."
            )
        if reward is None:  # 0 and an end where the goal is reached, -1 elsewhere
            there = task["reached"](task["achieved"](next_state), goal)
            return there.float() - 1, there
        given = (state, action, next_state) if goal is None else (state, action, next_state, goal)
        rewards: Tensor = reward(*given).float()
        return rewards, torch.zeros_like(rewards, dtype=torch.bool) if terminal is None else terminal(*given)

    def goals(n: int, *, seed: int | Stream, device: torch.device | str) -> Tensor:
        # A number rather than a stream: any library's generator can be seeded with it.
        number = int(as_stream(seed, "goals", device="cpu").integers(2**31, 1))
        drawn: Tensor = functions["goals"](n, number, device).float()
        return drawn

    drawn = {"goals": goals} if "goals" in functions else {}
    return task | drawn | ({"label": label} if "reward" in functions or "reached" in task else {})


def _columns(columns: list[int], state: Tensor) -> Tensor:
    return state[:, columns]


def near(tolerance: float, groups: list[list[int]] | None, achieved: Tensor, goal: Tensor) -> Tensor:
    """Whether the columns of every factor are within the tolerance of the goal's, bool (N,)."""
    apart = achieved - goal
    # Indexing with a list copies it to the GPU, which a CUDA graph cannot capture.
    parts = [apart] if groups is None else [torch.stack([apart[:, column] for column in own], 1) for own in groups]
    return torch.stack([part.norm(dim=1) <= tolerance for part in parts]).all(0)


def first_to_move(
    groups: list[list[int]], reached: Callable[[Tensor, Tensor], Tensor], achieved: Tensor, goal: Tensor
) -> Tensor:
    """What is achieved, but with the first thing at its goal that is not there yet, (G,); the goal if all are there.

    groups  columns of each thing, in the order in which things are moved
    """
    for group in groups:
        moved = achieved.clone()
        moved[group] = goal[group]
        if not bool(reached(achieved[None], moved[None])):
            return moved
    return goal


def _box(given: object, graph: LocalGraph) -> tuple[Tensor, Tensor] | None:
    if given is None:
        return None
    try:
        low, high = (torch.as_tensor(end, dtype=torch.float32) for end in given)  # type: ignore[attr-defined]
        if tuple(low.shape) == tuple(high.shape) == (graph.width,) and bool((low <= high).all()):
            return low, high
    except (TypeError, ValueError, RuntimeError):
        pass
    raise InputError(
        f"box must be a low and a high row of {graph.width} numbers each, (low, high), the state's and the action's, "
        f"low nowhere above high, got {given!r}."
    )


# --- local rules: edges that exist in some rows only


class Near(NamedTuple):
    """Two factors that depend on each other where these columns of theirs are closer than `within`."""

    one: tuple[str | int, ...]  # a factor, and the columns that are compared, by the ends of their names or by numbers
    other: tuple[str | int, ...]
    within: float
    norm: float


def near_rules(given: object, graph: LocalGraph, names: ColumnNames) -> LocalEdges:
    """All [[near]] tables of a file as one function."""
    if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
        raise InputError("a rule is written under [[near]], in two brackets.")
    rules = [near for number, rule in enumerate(given, 1) for near in _pairs(f"[[near]] {number}", rule, graph)]
    no_rows = Factors(torch.zeros(0, graph.width), graph.factors, names)
    for rule in rules:
        one, other = (no_rows[compared].shape[1] for compared in rule[:2])
        if one != other:
            raise InputError(
                f"[[near]] cannot compare {rule.one[0]!r} and {rule.other[0]!r} in {one} and {other} columns; say "
                f'which, such as columns = ["x", "y"] or {{ {rule.one[0]} = "0:2", {rule.other[0]} = "1:3" }}.'
            )

    def local(f: Factors) -> dict[Edge, Tensor]:
        found: dict[Edge, Tensor] = {}
        for one, other, within, norm in rules:
            near = torch.linalg.vector_norm(f[one] - f[other], norm, dim=1) < within
            for parent, child in ((str(one[0]), str(other[0])), (str(other[0]), str(one[0]))):
                if parent not in graph.edges[child]:
                    found[parent, child] = near | found.get((parent, child), False)
        return found

    return local


def _pairs(where: str, rule: Mapping[str, Any], graph: LocalGraph) -> Iterator[Near]:
    """The pairs of factors that a rule is about, checked."""
    check_names(f"setting of {where} called", rule, RULE)
    between, norm, columns = rule.get("between"), rule.get("norm", "l2"), rule.get("columns", [])
    within: Any = rule.get("within")
    if not isinstance(between, list) or len(between) < 2 or any(between.count(name) > 1 for name in between):
        raise InputError(f"{where} must say between which factors, two or more, got {between!r}.")
    if acts := [name for name in between if name in tuple(graph.action)]:
        raise InputError(f"{where} is about {acts[0]!r}, an action; only state factors are near each other.")
    check_names("state factor", between, graph.children)
    if type(within) not in (int, float) or not 0 < within < float("inf"):
        raise InputError(f"{where} must say within what distance, a number above 0, got {within!r}.")
    check_names("norm", [norm], NORMS)
    if not isinstance(columns, Mapping):
        columns = dict.fromkeys(between, columns)
    if wrong := [name for name in (*columns, *between) if name not in between or name not in columns]:
        raise InputError(
            f"the columns of {where} must be given for each of its factors and no other; not {wrong[0]!r}."
        )
    compared = {name: (name, *_listed(where, own)) for name, own in columns.items()}
    for one, other in combinations(between, 2):
        if one in graph.edges[other] and other in graph.edges[one]:
            raise InputError(f"{where} adds nothing: in edges, {one!r} and {other!r} already depend on each other.")
        yield Near(compared[one], compared[other], float(within), NORMS[norm])


def _listed(where: str, given: object) -> tuple[str | int, ...]:
    if isinstance(given, str) and (bounds := re.fullmatch(r"(\d{1,6}):(\d{1,6})", given)):
        return tuple(range(int(bounds[1]), int(bounds[2])))
    if not isinstance(given, list) or not all(type(column) in (str, int) for column in given):
        raise InputError(f'the columns of {where} must be a list of names or a range such as "0:3", got {given!r}.')
    return tuple(given)


def local_mask(file: Path, graph: LocalGraph, names: ColumnNames, local: LocalEdges) -> MaskFunction:
    """rows (N, S + A) -> bool (N, parents, children): sparsest edges and the local edges of each row."""

    def mask(rows: Tensor) -> Tensor:
        edges = graph.sparsest.to(rows.device).repeat(len(rows), 1, 1)
        with _errors_name(file):
            for (parent, child), where in _checked(local(Factors(rows, graph.factors, names)), graph, len(rows)):
                edges[:, graph.parents.index(parent), graph.children.index(child)] |= where.to(rows.device)
        return edges

    return mask


def _checked(found: object, graph: LocalGraph, rows: int) -> Iterator[tuple[Edge, Tensor]]:
    if not isinstance(found, Mapping):
        raise InputError(
            f"local(f) must return a dict, such as {{(parent, child): f[...] < 0.05}}, got {type(found).__name__}."
        )
    for edge, given in found.items():
        if not isinstance(edge, tuple) or len(edge) != 2:
            raise InputError(f"the keys that local(f) returns must be pairs (parent, child), got {edge!r}.")
        parent, child = edge
        check_names("factor", edge, graph.parents)
        if child in graph.action:
            raise InputError(f"local(f) names the action {child!r} as a child; only state factors have parents.")
        if parent in graph.edges[child]:
            raise InputError(
                f"local(f) says where {child!r} depends on {parent!r}, but by edges it always does; remove one of them."
            )
        where = as_tensor(given) if isinstance(given, Tensor | np.ndarray) else None
        if where is None or where.dtype != torch.bool or tuple(where.shape) != (rows,):
            got = type(given).__name__ if where is None else f"{where.dtype} of shape {tuple(where.shape)}"
            raise InputError(
                f"local(f) must return a boolean tensor for {edge}, such as a comparison gives, with one value per "
                f"row, shape ({rows},), got {got}."
            )
        yield (parent, child), where
