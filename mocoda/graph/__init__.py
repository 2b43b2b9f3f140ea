"""Who depends on whom, and where: the local causal graph."""

from mocoda.graph.graph_file import FileTask, load_graph, load_task
from mocoda.graph.local_graph import LocalGraph, connected_components

__all__ = ["FileTask", "LocalGraph", "connected_components", "load_graph", "load_task"]
