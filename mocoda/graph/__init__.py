"""Who depends on whom, and where: the local causal graph."""

from mocoda.graph.graph_file import FileTask, load_graph, load_task
from mocoda.graph.learned import LearnedGraph
from mocoda.graph.learning import learn_graph
from mocoda.graph.local_graph import LocalGraph, connected_components
from mocoda.graph.usual import GraphConfig

__all__ = [
    "FileTask",
    "GraphConfig",
    "LearnedGraph",
    "LocalGraph",
    "connected_components",
    "learn_graph",
    "load_graph",
    "load_task",
]
