"""Who depends on whom, and where: the local causal graph."""

from mocoda.graph.graph_file import FileTask, load_graph, load_task
from mocoda.graph.learned import GraphLearner, LearnedGraph, make_learner
from mocoda.graph.learning import LEARNERS, GateLearner, GradientLearner, check_learner, learn_graph
from mocoda.graph.local_graph import LocalGraph, connected_components

__all__ = [
    "LEARNERS",
    "FileTask",
    "GateLearner",
    "GradientLearner",
    "GraphLearner",
    "LearnedGraph",
    "LocalGraph",
    "check_learner",
    "connected_components",
    "learn_graph",
    "load_graph",
    "load_task",
    "make_learner",
]
