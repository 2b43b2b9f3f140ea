"""Step 2: predict the next states of the new parents with a model that obeys the graph. One file per kind of model."""

from mocoda.dynamics.check_dynamics import check_dynamics
from mocoda.dynamics.deterministic import DeterministicDynamics
from mocoda.dynamics.fit import (
    ARCHITECTURES,
    DynamicsConfig,
    FullDynamics,
    GlobalDynamics,
    TrainedFamily,
    fit_dynamics,
    fit_dynamics_runs,
)
from mocoda.dynamics.model import DYNAMICS, Dynamics, DynamicsFamily, Ensemble, Prediction, make_dynamics

for _family in (DynamicsConfig, GlobalDynamics, FullDynamics, DeterministicDynamics):
    DYNAMICS.add(_family)

__all__ = [
    "ARCHITECTURES",
    "DYNAMICS",
    "DeterministicDynamics",
    "Dynamics",
    "DynamicsConfig",
    "DynamicsFamily",
    "Ensemble",
    "FullDynamics",
    "GlobalDynamics",
    "Prediction",
    "TrainedFamily",
    "check_dynamics",
    "fit_dynamics",
    "fit_dynamics_runs",
    "make_dynamics",
]
