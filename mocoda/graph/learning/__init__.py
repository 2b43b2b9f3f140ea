"""Graphs learned from data. One file per learner."""

from mocoda.graph.learned import LEARNERS
from mocoda.graph.learning.check_learner import check_learner
from mocoda.graph.learning.gates import GateLearner
from mocoda.graph.learning.gradient import GradientLearner
from mocoda.graph.learning.learn import learn_graph

for _learner in (GateLearner, GradientLearner):
    LEARNERS.add(_learner)

__all__ = ["LEARNERS", "GateLearner", "GradientLearner", "check_learner", "learn_graph"]
