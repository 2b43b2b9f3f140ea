"""Step 2: predict the next states of the new parents with a model that obeys the graph."""

from mocoda.dynamics.fit import fit_dynamics, fit_dynamics_runs
from mocoda.dynamics.mechanisms import ARCHITECTURES
from mocoda.dynamics.model import Dynamics, DynamicsConfig, Ensemble, Prediction

__all__ = ["ARCHITECTURES", "Dynamics", "DynamicsConfig", "Ensemble", "Prediction", "fit_dynamics", "fit_dynamics_runs"]
