"""mocoda: model-based counterfactual data augmentation.

Recorded transitions and a local causal graph in, new transitions out. In the order the data flows:

    task = make_task("navigation")                        environment, graph, rewards
    data = task.collect(rows=40_000, seed=0)              Transitions
    parents = fit_parents(data, task.graph)               new states and actions
    model = fit_dynamics(data, task.graph)                what happens next
    augmented = augment(data, parents, model, rows=160_000, task=task)
    agents = train_agents({"recorded": data, "mocoda": augmented}, task=task)
    print(evaluate(agents, task))                         steps, success and return, per data set and seed
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import gymnasium

from mocoda.engine.files import VERSION

if TYPE_CHECKING:
    from mocoda.agents import Agent as Agent
    from mocoda.agents import Evaluation as Evaluation
    from mocoda.agents import Policies as Policies
    from mocoda.agents import Policy as Policy
    from mocoda.agents import check_agent as check_agent
    from mocoda.agents import evaluate as evaluate
    from mocoda.agents import make_agent as make_agent
    from mocoda.agents import train_agents as train_agents
    from mocoda.agents.onnx_export import export_onnx as export_onnx
    from mocoda.analysis import Advice as Advice
    from mocoda.analysis import Audit as Audit
    from mocoda.analysis import Scores as Scores
    from mocoda.analysis import StepCheck as StepCheck
    from mocoda.analysis import WhatIf as WhatIf
    from mocoda.analysis import audit as audit
    from mocoda.analysis import check as check
    from mocoda.analysis import check_step as check_step
    from mocoda.analysis import report as report
    from mocoda.analysis import score_rows as score_rows
    from mocoda.analysis import what_if as what_if
    from mocoda.augmentation import Augmentation as Augmentation
    from mocoda.augmentation import GoalsOf as GoalsOf
    from mocoda.augmentation import LearnedReward as LearnedReward
    from mocoda.augmentation import RewardConfig as RewardConfig
    from mocoda.augmentation import Support as Support
    from mocoda.augmentation import add_objects as add_objects
    from mocoda.augmentation import augment as augment
    from mocoda.augmentation import augment_episodes as augment_episodes
    from mocoda.augmentation import augment_to_file as augment_to_file
    from mocoda.augmentation import augment_to_shards as augment_to_shards
    from mocoda.augmentation import disagreement as disagreement
    from mocoda.augmentation import fit_reward as fit_reward
    from mocoda.augmentation import fit_support as fit_support
    from mocoda.augmentation import label as label
    from mocoda.data import Excerpt as Excerpt
    from mocoda.data import Inspection as Inspection
    from mocoda.data import inspect as inspect
    from mocoda.data import read as read
    from mocoda.data import read_excerpt as read_excerpt
    from mocoda.data import read_pieces as read_pieces
    from mocoda.data import track as track
    from mocoda.data import write as write
    from mocoda.data.editing import drop as drop
    from mocoda.data.editing import merge as merge
    from mocoda.data.editing import split as split
    from mocoda.data.editing import trim as trim
    from mocoda.data.formats.d3rlpy import from_d3rlpy as from_d3rlpy
    from mocoda.data.formats.d3rlpy import to_d3rlpy as to_d3rlpy
    from mocoda.data.transitions import Transitions as Transitions
    from mocoda.data.transitions import concatenate as concatenate
    from mocoda.dynamics import Dynamics as Dynamics
    from mocoda.dynamics import DynamicsConfig as DynamicsConfig
    from mocoda.dynamics import DynamicsFamily as DynamicsFamily
    from mocoda.dynamics import check_dynamics as check_dynamics
    from mocoda.dynamics import fit_dynamics as fit_dynamics
    from mocoda.dynamics import fit_dynamics_runs as fit_dynamics_runs
    from mocoda.dynamics import make_dynamics as make_dynamics
    from mocoda.engine.engines import Engine as Engine
    from mocoda.engine.engines import make_engine as make_engine
    from mocoda.engine.errors import InputError as InputError
    from mocoda.engine.metrics import MetricLog as MetricLog
    from mocoda.graph import GateLearner as GateLearner
    from mocoda.graph import GraphLearner as GraphLearner
    from mocoda.graph import LearnedGraph as LearnedGraph
    from mocoda.graph import LocalGraph as LocalGraph
    from mocoda.graph import check_learner as check_learner
    from mocoda.graph import learn_graph as learn_graph
    from mocoda.graph import load_graph as load_graph
    from mocoda.graph import load_task as load_task
    from mocoda.graph import make_learner as make_learner
    from mocoda.parents import GaussianMixture as GaussianMixture
    from mocoda.parents import Parents as Parents
    from mocoda.parents import Recipe as Recipe
    from mocoda.parents import check_recipe as check_recipe
    from mocoda.parents import fit_parents as fit_parents
    from mocoda.parents import make_recipe as make_recipe
    from mocoda.tasks import Task as Task
    from mocoda.tasks import make_task as make_task
    from mocoda.tasks.one_at_a_time import OneAtATime as OneAtATime

__version__ = VERSION

# The public names by their room, in the order the data flows. Loaded at first use, so that `mocoda --help` does not
# wait for torch.
_ROOMS = {
    "tasks": ("make_task", "Task"),
    "tasks.one_at_a_time": ("OneAtATime",),
    "data.transitions": ("Transitions", "concatenate"),
    "data": ("read", "read_pieces", "read_excerpt", "Excerpt", "write", "inspect", "Inspection", "track"),
    "data.editing": ("merge", "split", "trim", "drop"),
    "data.formats.d3rlpy": ("to_d3rlpy", "from_d3rlpy"),
    "graph": (
        "LocalGraph",
        "load_graph",
        "load_task",
        "learn_graph",
        "LearnedGraph",
        "make_learner",
        "GraphLearner",
        "GateLearner",
        "check_learner",
    ),
    "parents": ("fit_parents", "make_recipe", "Recipe", "Parents", "check_recipe", "GaussianMixture"),
    "dynamics": (
        "fit_dynamics",
        "fit_dynamics_runs",
        "make_dynamics",
        "Dynamics",
        "DynamicsConfig",
        "DynamicsFamily",
        "check_dynamics",
    ),
    "augmentation": (
        "augment",
        "augment_episodes",
        "add_objects",
        "Augmentation",
        "augment_to_file",
        "augment_to_shards",
        "label",
        "fit_reward",
        "LearnedReward",
        "RewardConfig",
        "GoalsOf",
        "fit_support",
        "Support",
        "disagreement",
    ),
    "agents": (
        "train_agents",
        "make_agent",
        "Agent",
        "Policy",
        "Policies",
        "check_agent",
        "evaluate",
        "Evaluation",
    ),
    "agents.onnx_export": ("export_onnx",),
    "engine.metrics": ("MetricLog",),
    "engine.engines": ("make_engine", "Engine"),
    "analysis": (
        "check",
        "Advice",
        "score_rows",
        "Scores",
        "what_if",
        "WhatIf",
        "check_step",
        "StepCheck",
        "audit",
        "Audit",
        "report",
    ),
    "engine.errors": ("InputError",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}
__all__ = list(_HOME)


def _register(name: str, where: str, steps: int | None = None, **options: Any) -> None:
    gymnasium.register(f"mocoda/{name}-v0", f"mocoda.tasks.{where}", max_episode_steps=steps, kwargs=options)


_register("Navigation2D", "navigation:Navigation2D", 70)
_register("HookSweep2", "hooksweep_env:HookSweep2Env", 75)
_register("Objects", "objects:ObjectsEnv")
for _cubes, _kind, _steps in ((1, "Single", 200), (2, "Double", 500), (3, "Triple", 1000), (4, "Quadruple", 1000)):
    for _official in (None, 1, 2, 3, 4, 5):  # OGBench's official tasks; None: one of them, drawn at each reset
        for _whole in (False, True):
            _name = f"Cube{_kind}{'States' if _whole else ''}{_official or ''}"
            _register(_name, "cubes_env:CubesEnv", _steps, cubes=_cubes, official=_official, whole_states=_whole)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mocoda' has no attribute {name!r}")
    return getattr(import_module(f"mocoda.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
