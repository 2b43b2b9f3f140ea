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
    from mocoda.agents import Agent as Agent
    from mocoda.agents import make_agent as make_agent
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
    from mocoda.graph import LocalGraph as LocalGraph
    from mocoda.learning import train_agents as train_agents
    from mocoda.mixture import GaussianMixture as GaussianMixture
    from mocoda.parents import Parents as Parents
    from mocoda.parents import fit_parents as fit_parents
    from mocoda.policies import Policies as Policies
    from mocoda.policies import Policy as Policy
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
    "LocalGraph": "graph",
    "GaussianMixture": "mixture",
    "fit_parents": "parents",
    "Parents": "parents",
    "fit_dynamics": "dynamics",
    "fit_dynamics_runs": "dynamics",
    "Dynamics": "dynamics",
    "DynamicsConfig": "dynamics",
    "augment": "augmentation",
    "augment_chunks": "augmentation",
    "what_if": "whatif",
    "WhatIf": "whatif",
    "train_agents": "learning",
    "make_agent": "agents",
    "Agent": "agents",
    "Policy": "policies",
    "Policies": "policies",
    "check_agent": "contract",
    "evaluate": "evaluation",
    "Evaluation": "evaluation",
    "InputError": "files",
}
__all__ = list(_HOME)

gymnasium.register("mocoda/Navigation2D-v0", "mocoda.tasks.navigation:Navigation2D", max_episode_steps=70)
gymnasium.register("mocoda/HookSweep2-v0", "mocoda.tasks.hooksweep_env:HookSweep2Env", max_episode_steps=75)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mocoda' has no attribute {name!r}")
    return getattr(import_module(f"mocoda.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
