"""Files of models, policies, rewards and checkpoints: old ones are read, damaged ones refused, and nothing else."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from agents_world import S, recorded, small
from approved import refused
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mocoda
from mocoda import (
    Dynamics,
    DynamicsConfig,
    InputError,
    LocalGraph,
    Policies,
    Policy,
    Transitions,
    fit_dynamics,
    train_agents,
)
from mocoda.augmentation.rewards import LearnedReward, RewardConfig, fit_reward
from mocoda.engine import checkpoint as files
from mocoda.engine.checkpoint import FORMAT, Checkpoint, load_trained
from mocoda.engine.randomness import Stream, generator

OLD = Path(__file__).parent / "files"
DATA = mocoda.make_task("navigation").collect(300, seed=0)  # an L: the quadrant where all depends on all is not in it
TINY = DynamicsConfig(members=2, hidden=(4,), features=3, epochs=1, batch=64)


def corner(threshold: float = 0.5, other: float | None = None) -> LocalGraph:
    """x' depends on x and dx, y' on y and dy, and in a corner each on all."""

    def local(rows: Tensor) -> Tensor:
        inside = (rows[:, 0] > threshold) & (rows[:, 1] > (threshold if other is None else other))
        return sparsest.sparsest.expand(len(rows), 4, 2) | inside[:, None, None]

    names: dict[str, Any] = {"state": {"x": 0, "y": 1}, "action": {"dx": 0, "dy": 1}}
    sparsest = LocalGraph(**names, edges={"x": ["x", "dx"], "y": ["y", "dy"]})
    return LocalGraph(**names, edges=sparsest.edges, local=local)


# One example of every kind


class Example(NamedTuple):
    """How a small file is written, and the numbers that the object read from it gives."""

    kind: str
    write: Callable[[Path], object]
    numbers: Callable[[Path], tuple[Tensor, ...]]


@functools.cache
def fitted() -> Dynamics:
    return fit_dynamics(DATA, corner(), config=TINY)


def predicted(path: Path, graph: LocalGraph | None = None) -> tuple[Tensor, ...]:
    model = Dynamics.load(path, graph or corner())
    return (*model.predict(ROWS), model.sample(ROWS, seed=0))


ROWS = Stream(0, "trained-files").uniform(5, 4)
SEEN = Stream(1, "trained-files").uniform(5, S)


@functools.cache
def trained() -> Policy:
    return train_agents({"one": recorded(30)}, small("td3-bc", hidden=(4,)), seeds=[0], updates=2)["one", 0]


def acted(path: Path) -> tuple[Tensor, ...]:
    return (torch.as_tensor(Policy.load(path).act(SEEN)),)


@functools.cache
def learned() -> LearnedReward:
    return fit_reward(recorded(40), config=RewardConfig(hidden=(4,), updates=5))


def labelled(path: Path) -> tuple[Tensor, ...]:
    data, reward = recorded(5), LearnedReward.load(path)
    assert "rows held out" in reward.in_words
    return reward.label(data.state, data.action, data.next_state)


def fitting(path: Path) -> tuple[Tensor, ...]:
    return tuple(fit_dynamics(DATA, corner(), config=TINY, checkpoint=path).weights.values())


def training(path: Path) -> tuple[Tensor, ...]:
    runs = train_agents({"one": recorded(30)}, small("td3-bc", hidden=(4,)), seeds=[0], updates=2, checkpoint=path)
    return tuple(runs["one", 0].weights.values())


EXAMPLES = {
    "dynamics": Example("dynamics", lambda path: fitted().save(path), predicted),
    "policy": Example("policy", lambda path: trained().save(path), acted),
    "reward": Example("reward", lambda path: learned().save(path), labelled),
    "fit's checkpoint": Example("checkpoint", fitting, fitting),
    "agents' checkpoint": Example("checkpoint", training, training),
}
each_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)


@pytest.fixture(autouse=True)
def at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mocoda.dynamics.fit", "mocoda.agents.train"):
        monkeypatch.setattr(f"{module}.Checkpoint", functools.partial(Checkpoint, interval=0.0))


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    return all(a.equal(b) for a, b in zip(one, other, strict=True))


# What is written is read


@each_example
def test_what_is_read_gives_the_numbers_of_what_was_written_and_the_file_never_varies(
    example: Example, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        example.write(tmp_path / "deep" / name)
    first = tmp_path / "deep" / "one"
    assert first.read_bytes() == (tmp_path / "deep" / "other").read_bytes()
    header = load_trained(first, example.kind)[1]
    assert (header["kind"], header["format"]) == (example.kind, FORMAT)
    assert set(header["versions"]) == {"mocoda", "torch", "safetensors"}
    assert same(example.numbers(first), example.numbers(tmp_path / "deep" / "other"))


@pytest.mark.parametrize("kind", ["dynamics", "policy", "reward"])
def test_files_of_format_1_are_read_and_give_the_numbers_they_gave(kind: str) -> None:
    """The promise to old files: these are never written again."""
    given = EXAMPLES[kind].numbers(OLD / f"{kind}-v1.safetensors")
    expected = json.loads((OLD / "expected.json").read_text())[kind]
    assert len(given) == len(expected)
    for one, other in zip(given, expected, strict=True):
        assert torch.allclose(one.double(), torch.tensor(other).double(), atol=1e-6)


# Damage


def rewritten(path: Path, header: Any = None, tensors: Mapping[str, Tensor] | None = None) -> None:
    """The file with another header or other tensors, and a checksum that fits them."""
    with safetensors.safe_open(path, framework="pt") as file:
        old = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        old_header = json.loads(file.metadata()["mocoda"])
    tensors, header = old if tensors is None else tensors, old_header if header is None else header
    if isinstance(header, dict) and "checksum" in header:
        header = {**header, "checksum": files._checksum(tensors, header)}
    text = header if isinstance(header, str) else json.dumps(header)
    safetensors.torch.save_file(dict(tensors), path, {"mocoda": text})


def header_of(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, framework="pt") as file:
        header: dict[str, Any] = json.loads(file.metadata()["mocoda"])
        return header


def change_header(path: Path, **changes: Any) -> None:
    rewritten(path, {**header_of(path), **changes})


def change_tensor(path: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    rewritten(path, tensors=tensors)


def first(tensors: Mapping[str, Tensor]) -> str:
    return min(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.ndim > 1)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "folder": make_folder,
    "other program": lambda path: safetensors.torch.save_file({"a": torch.zeros(2)}, path, {"format": "pt"}),
    "unversioned": lambda path: rewritten(path, {"architecture": "local", "config": {}}),
    "format of tomorrow": lambda path: change_header(path, format=FORMAT + 1),
    "other kind": lambda path: change_header(path, kind="cake"),
    "header that is a list": lambda path: rewritten(path, "[1]"),
    "large integer": lambda path: rewritten(path, '{"format": 1' + 400 * "0" + "}"),
    "deep": lambda path: rewritten(path, "[" * 100_000),
    "changed number": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "text": lambda path: path.write_bytes(b"text that is long enough to have a header"),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-10]),
    "no tensor": lambda path: change_tensor(path, lambda t: t.pop(first(t))),
    "shape": lambda path: change_tensor(path, lambda t: t.update({first(t): torch.zeros(1)})),
    "type": lambda path: change_tensor(path, lambda t: t.update({first(t): t[first(t)].double()})),
}


@pytest.mark.parametrize("name", ["td3-bc", "bcq"])
def test_agents_with_one_action_column_are_saved_and_read(name: str, tmp_path: Path) -> None:
    draw = Stream(0, "one-column").uniform
    data = Transitions(draw(60, 2), draw(60, 1, low=-1), draw(60, 2), reward=draw(60))
    settings: dict[str, Any] = {"seeds": [0], "updates": 2, "actions": (-1, 1), "checkpoint": tmp_path / "checkpoint"}
    policies = train_agents({"one": data}, small(name, hidden=(4,)), **settings)
    policies.save(tmp_path / "policies")
    read = Policies.load(tmp_path / "policies")
    assert np.array_equal(read["one", 0].act(data.state), policies["one", 0].act(data.state))
    assert train_agents({"one": data}, small(name, hidden=(4,)), **settings).keys() == policies.keys()


@each_example
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_in_one_sentence_with_the_way_out(
    example: Example, damage: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    example.write(path)
    DAMAGES[damage](path)
    if example.kind == "checkpoint" and damage in ("missing", "folder"):
        return  # one starts a training, and the other is refused as no place to write
    before = path.read_bytes() if path.is_file() else b""
    with refused():
        example.numbers(path)
    assert not path.is_file() or path.read_bytes() == before


def test_settings_that_a_file_does_not_have_keep_their_defaults(tmp_path: Path) -> None:
    """So that a file is read by a version with more settings."""
    path = tmp_path / "file"
    fitted().save(path)
    header = header_of(path)
    del header["settings"]["config"]["tf32"], header["settings"]["config"]["sharpen"]
    rewritten(path, header)
    assert Dynamics.load(path, corner()).config == fitted().config
    trained().save(path)
    header = header_of(path)
    del header["settings"]["agent"]["polyak"]
    rewritten(path, header)
    assert Policy.load(path).agent == trained().agent == Policy.load(path, trained().agent).agent


HOSTILE: list[Any] = [None, True, -1, 0, 7, 10**18, 1e300, -0.5, "x", "", [], {}, [1], {"a": 1}, [[]], "\x00", "../x"]


def mutated_header(path: Path, random: np.random.Generator) -> None:
    """One value of the header replaced, removed or added, at any depth, with a checksum that fits."""
    header = header_of(path)
    inner: Any = header
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = keys[random.integers(len(keys))]
        if isinstance(inner[key], dict | list) and inner[key] and random.random() < 0.8:
            inner = inner[key]
            continue
        break
    what = random.integers(4)
    if what == 0:
        del inner[key]
    elif what == 1 and isinstance(inner, dict):
        inner["new"] = HOSTILE[random.integers(len(HOSTILE))]
    else:
        inner[key] = HOSTILE[random.integers(len(HOSTILE))]
    rewritten(path, header)


def mutated_bytes(path: Path, random: np.random.Generator) -> None:
    """A few bytes changed, half of the time in the header; or a piece cut out or doubled."""
    content = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little") if random.random() < 0.5 else len(content)
    what, place = random.integers(8), int(random.integers(end))
    if what == 0:
        del content[place : place + int(random.integers(1, 50))]
    elif what == 1:
        content[place:place] = content[place : place + int(random.integers(1, 50))]
    else:
        for _ in range(random.integers(1, 5)):
            content[int(random.integers(end))] = int(random.integers(256))
    path.write_bytes(content)


@each_example
@pytest.mark.parametrize("mutate", [mutated_bytes, mutated_header])
def test_whatever_happens_to_a_file_it_is_refused_in_one_line_or_read_as_something_sound(
    example: Example, mutate: Callable[[Path, np.random.Generator], None], tmp_path: Path
) -> None:
    example.write(tmp_path / "sound")
    expected, outcomes = example.numbers(tmp_path / "sound"), []
    for number in range(80):
        path = tmp_path / f"{number}"
        shutil.copy(tmp_path / "sound", path)
        mutate(path, generator(number))
        try:
            given = example.numbers(path)
        except InputError as error:
            assert "\n" not in str(error) and str(path) in str(error) and len(str(error)) < 1_200
            outcomes.append(False)
            continue
        outcomes.append(True)
        assert [one.shape for one in given] == [other.shape for other in expected]
        assert mutate is mutated_header or same(given, expected)  # the checksum finds every other change
    assert outcomes.count(False) > 20


# The graph's local rule


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    fitted().save(path)
    return path


# Rules are compared by their edges at a number of rows, so that none of these may lie between two thresholds.
moved = st.floats(-0.5, 1.5).filter(lambda threshold: abs(threshold - 0.5) > 0.02)


@given(moved)
def test_every_changed_threshold_is_noticed(model_file: Path, threshold: float) -> None:
    for graph in (corner(threshold), corner(0.5, threshold), corner(threshold, 0.5)):
        with pytest.raises(InputError, match="was fitted to another graph"):
            Dynamics.load(model_file, graph)


def test_a_checkpoint_under_a_changed_rule_is_refused(tmp_path: Path) -> None:
    fit = functools.partial(fit_dynamics, DATA, config=TINY, checkpoint=tmp_path / "file")
    fit(graph=corner())
    with pytest.raises(InputError, match=r"belongs to another training, which differs in .*rules\. Delete it"):
        fit(graph=corner(0.51))
