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

from mocoda.files import VERSION

if TYPE_CHECKING:
    from mocoda.advice import Advice as Advice
    from mocoda.advisor import check as check
    from mocoda.agents import Agent as Agent
    from mocoda.agents import make_agent as make_agent
    from mocoda.augmentation import Augmentation as Augmentation
    from mocoda.augmentation import augment as augment
    from mocoda.augmentation import augment_chunks as augment_chunks
    from mocoda.contract import check_agent as check_agent
    from mocoda.dynamics import Dynamics as Dynamics
    from mocoda.dynamics import DynamicsConfig as DynamicsConfig
    from mocoda.dynamics import fit_dynamics as fit_dynamics
    from mocoda.dynamics import fit_dynamics_runs as fit_dynamics_runs
    from mocoda.evaluation import Evaluation as Evaluation
    from mocoda.evaluation import evaluate as evaluate
    from mocoda.files import InputError as InputError
    from mocoda.formats import read as read
    from mocoda.formats import write as write
    from mocoda.formats.d3rlpy import from_d3rlpy as from_d3rlpy
    from mocoda.formats.d3rlpy import to_d3rlpy as to_d3rlpy
    from mocoda.graph import LocalGraph as LocalGraph
    from mocoda.graph_files import load_graph as load_graph
    from mocoda.graph_files import load_task as load_task
    from mocoda.inspection import Inspection as Inspection
    from mocoda.inspection import inspect as inspect
    from mocoda.learning import train_agents as train_agents
    from mocoda.metrics import MetricLog as MetricLog
    from mocoda.mixture import GaussianMixture as GaussianMixture
    from mocoda.onnx_export import export_onnx as export_onnx
    from mocoda.parents import Parents as Parents
    from mocoda.parents import fit_parents as fit_parents
    from mocoda.policies import Policies as Policies
    from mocoda.policies import Policy as Policy
    from mocoda.rewards import GoalsOf as GoalsOf
    from mocoda.rewards import LearnedReward as LearnedReward
    from mocoda.rewards import RewardConfig as RewardConfig
    from mocoda.rewards import fit_reward as fit_reward
    from mocoda.streaming import augment_to_file as augment_to_file
    from mocoda.support import Support as Support
    from mocoda.support import disagreement as disagreement
    from mocoda.support import fit_support as fit_support
    from mocoda.tasks import Task as Task
    from mocoda.tasks import make_task as make_task
    from mocoda.transitions import Transitions as Transitions
    from mocoda.transitions import concatenate as concatenate
    from mocoda.transitions import save_stream as save_stream
    from mocoda.whatif import WhatIf as WhatIf
    from mocoda.whatif import what_if as what_if

__version__ = VERSION

# Public name -> its module, in flow order. Loaded at first use, so that `mocoda --help` does not wait for torch.
_HOME = {
    "make_task": "tasks",
    "Task": "tasks",
    "Transitions": "transitions",
    "concatenate": "transitions",
    "save_stream": "transitions",
    "read": "formats",
    "write": "formats",
    "to_d3rlpy": "formats.d3rlpy",
    "from_d3rlpy": "formats.d3rlpy",
    "inspect": "inspection",
    "Inspection": "inspection",
    "LocalGraph": "graph",
    "load_graph": "graph_files",
    "load_task": "graph_files",
    "GaussianMixture": "mixture",
    "fit_parents": "parents",
    "Parents": "parents",
    "fit_dynamics": "dynamics",
    "fit_dynamics_runs": "dynamics",
    "Dynamics": "dynamics",
    "DynamicsConfig": "dynamics",
    "fit_support": "support",
    "Support": "support",
    "disagreement": "support",
    "fit_reward": "rewards",
    "LearnedReward": "rewards",
    "RewardConfig": "rewards",
    "GoalsOf": "rewards",
    "augment": "augmentation",
    "augment_chunks": "augmentation",
    "Augmentation": "augmentation",
    "augment_to_file": "streaming",
    "what_if": "whatif",
    "WhatIf": "whatif",
    "check": "advisor",
    "Advice": "advice",
    "train_agents": "learning",
    "MetricLog": "metrics",
    "make_agent": "agents",
    "Agent": "agents",
    "Policy": "policies",
    "Policies": "policies",
    "export_onnx": "onnx_export",
    "check_agent": "contract",
    "evaluate": "evaluation",
    "Evaluation": "evaluation",
    "InputError": "files",
}
__all__ = list(_HOME)

gymnasium.register("mocoda/Navigation2D-v0", "mocoda.tasks.navigation:Navigation2D", max_episode_steps=70)
gymnasium.register("mocoda/HookSweep2-v0", "mocoda.tasks.hooksweep_env:HookSweep2Env", max_episode_steps=75)
gymnasium.register("mocoda/Objects-v0", "mocoda.tasks.objects:ObjectsEnv")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mocoda' has no attribute {name!r}")
    return getattr(import_module(f"mocoda.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
