"""Export of policies to ONNX files, which run without torch and without mocoda.

observation  (N, S + G), float32: states as the task gives them, with their goals beside them if there are goals
noise        (N, P, D), float32, only for BCQ and DQC, which draw P proposals per state and take the best. For BCQ, two
             numbers in [0, 1), which choose a proposal's sampler and component, and A standard normal ones; for DQC,
             A standard normal ones for each action of its short chunks
action       (N, A), float32, in the task's range
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mocoda.agents.bcq import BCQ, MIN_SCALE
from mocoda.agents.dqc import DQC
from mocoda.agents.gciql import GCIQL
from mocoda.agents.policy import Policy, acting_weights, agent_settings
from mocoda.engine.errors import InputError
from mocoda.engine.files import VERSION, check_writable, whole_file
from mocoda.engine.normed import CUBE, EPSILON, SLOPE
from mocoda.engine.randomness import Stream, as_stream

if TYPE_CHECKING:
    import onnx

# onnxruntime has supported these since 1.12 (2022), as do most other programs.
OPSET, FORMAT = 17, 8
TRIED, TOLERANCE = 64, 1e-3  # number of states in which a new file is tested; maximum error, as a share of the range

Arrays = Mapping[str, NDArray[np.float32]]
Constant = float | list[int] | NDArray[Any]  # floats are stored as float32, lists of integers as int64


def export_onnx(policy: Policy, path: str | Path) -> None:
    """Writes the policy as an ONNX file, after checking that both act alike.

    The file's metadata holds the agent's settings and the names of columns.
    """
    try:
        import onnx
    except ImportError as error:
        raise InputError(f'to write ONNX files, onnx is needed: pip install "mocoda[onnx]" ({error}).') from error
    check_writable(path)
    policy = policy.to("cpu")
    model = _model(policy)
    onnx.checker.check_model(model, full_check=True)
    _check_same_actions(policy, model)
    with whole_file(path) as part:
        part.write_bytes(model.SerializeToString(deterministic=True))


def noise_for(policy: Policy, rows: int, *, seed: int | Stream = 0) -> NDArray[np.float32]:
    """Draws the noise (N, P, D) with which the file of a BCQ or DQC policy acts as `policy.act(state, seed=seed)`."""
    if not isinstance(policy.agent, BCQ | DQC):
        raise InputError(f"the agent {policy.agent.name!r} needs no noise: its file takes only observations.")
    drawn = policy.agent.acting_noise(as_stream(seed, "act", device=policy.device), rows, policy.action_width)
    if isinstance(policy.agent, DQC):
        return drawn["start"].cpu().numpy()
    member, component, offset = (drawn[name].cpu().numpy() for name in ("member", "component", "offset"))
    middle = (member + 0.5) / policy.agent.samplers  # of the interval that selects this member
    return np.concatenate([middle[..., None], component[..., None], offset], -1).astype(np.float32)


class _Graph:
    """Nodes and constants of an ONNX graph, numbered in the order in which they are made."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def __call__(self, kind: str, *inputs: str | Constant, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node of operator `kind`, returns the names of its outputs; inputs other than names are constants."""
        import onnx

        names = []
        for value in inputs:
            names.append(value if isinstance(value, str) else f"constant{len(self.constants)}")
            if not isinstance(value, str):
                array = np.array(value, np.float32 if isinstance(value, float) else None, order="C")
                self.constants.append(onnx.numpy_helper.from_array(array, names[-1]))
        results = [f"{kind.lower()}{len(self.nodes)}.{i}" for i in range(outputs)]
        self.nodes.append(onnx.helper.make_node(kind, names, results, **attributes))
        return results if outputs > 1 else results[0]


def _model(policy: Policy) -> onnx.ModelProto:
    import onnx

    graph, agent, actions = _Graph(), policy.agent, policy.action_width
    weights = {name: w.numpy() for name, w in acting_weights(agent, policy.weights).items()}
    inputs: dict[str, list[Any]] = {"observation": ["rows", policy.state_width]}
    if isinstance(agent, BCQ):
        inputs["noise"] = ["rows", agent.proposals, 2 + actions]
        action = _best_proposal(graph, agent, weights, actions)
    elif isinstance(agent, DQC):
        inputs["noise"] = ["rows", agent.proposals, agent.short * actions]
        action = graph("Slice", _best_chunk(graph, agent, weights), [0], [actions], [-1])
    elif isinstance(agent, GCIQL):
        action = graph("Clip", _mlp(graph, weights, "actor", "observation"), -1.0, 1.0)
    elif any(name.startswith("actor.") for name in weights):
        action = _actor(graph, weights, actions)
    else:
        raise _no_onnx(policy, "it has no network 'actor'")
    low, high = policy.action_low.numpy(), policy.action_high.numpy()
    share = graph("Div", graph("Add", action, 1.0), 2.0)
    graph("Identity", graph("Add", graph("Mul", share, high - low), low))
    graph.nodes[-1].output[0] = "action"
    described = {name: onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()}
    body = onnx.helper.make_graph(
        graph.nodes,
        f"policy-{agent.name}",
        list(described.values()),
        [onnx.helper.make_tensor_value_info("action", 1, ["rows", actions])],
        graph.constants,
    )
    model = onnx.helper.make_model(
        body,
        producer_name="mocoda",
        producer_version=VERSION,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=FORMAT,
    )
    names = {"observation": policy.columns[: policy.state_width], "action": policy.columns[policy.state_width :]}
    about = {"mocoda": VERSION, "agent": json.dumps(agent_settings(agent)), "columns": json.dumps(names)}
    onnx.helper.set_model_props(model, about)
    return model


def _actor(graph: _Graph, weights: Arrays, actions: int) -> str:
    """Adds tanh of the first outputs of "actor": the actions of TD3-BC, the mean of SAC's and CQL's Gaussian."""
    output = _mlp(graph, weights, "actor", "observation")
    return str(graph("Tanh", graph("Slice", output, [0], [actions], [-1])))


def _best_proposal(graph: _Graph, agent: BCQ, weights: Arrays, actions: int) -> str:
    """Adds the proposal of the samplers that has the largest value."""
    members, components = agent.samplers, agent.components
    rows = graph("Unsqueeze", "observation", [0])
    output = graph("Transpose", _mlp(graph, weights, "sampler", rows), perm=[1, 0, 2])  # (N, E, K (1 + 2 A))
    output = graph("Reshape", output, [0, members, components, 1 + 2 * actions])
    share, mean, scale = graph("Split", output, [1, actions, actions], axis=-1, outputs=3)
    scale = graph("Add", graph("Softplus", scale), MIN_SCALE)
    cumulative = graph("CumSum", graph("Softmax", graph("Squeeze", share, [-1]), axis=-1), np.array(-1))

    which, level, offset = graph("Split", "noise", [1, 1, actions], axis=-1, outputs=3)
    member = graph("Cast", graph("Mul", which, float(members)), to=7)  # (N, P, 1), rounded down
    member = graph("Min", member, [members - 1])
    passed = graph("LessOrEqual", graph("GatherND", cumulative, member, batch_dims=1), level)
    component = graph("ReduceSum", graph("Cast", passed, to=7), [-1], keepdims=1)
    component = graph("Min", component, [components - 1])
    chosen = graph("Add", graph("Mul", member, [components]), component)
    mean, scale = (
        graph("GatherND", graph("Reshape", part, [0, members * components, actions]), chosen, batch_dims=1)
        for part in (mean, scale)
    )
    offset = graph("Mul", offset, float(agent.temperature))
    proposed = graph("Clip", graph("Add", mean, graph("Mul", scale, offset)), -1.0, 1.0)  # (N, P, A)

    return _best(graph, weights, _repeated(graph, agent.proposals), proposed)


def _best_chunk(graph: _Graph, agent: DQC, weights: Arrays) -> str:
    """Adds the chunk that has the largest value of those that the flow makes of the noise."""
    seen, chunk = _repeated(graph, agent.proposals), "noise"
    ones = graph("Add", graph("Mul", graph("Slice", "noise", [0], [1], [-1]), 0.0), 1.0)  # (N, P, 1)
    for step in range(agent.flow_steps):
        time = graph("Mul", ones, step / agent.flow_steps)
        speed = _mlp(graph, weights, "flow", graph("Concat", seen, chunk, time, axis=-1))
        chunk = graph("Add", chunk, graph("Div", speed, float(agent.flow_steps)))
    return _best(graph, weights, seen, graph("Clip", chunk, -1.0, 1.0))


def _repeated(graph: _Graph, proposals: int) -> str:
    return str(graph("Expand", graph("Unsqueeze", "observation", [1]), [1, proposals, 1]))


def _best(graph: _Graph, weights: Arrays, seen: str, proposed: str) -> str:
    """Adds those of the proposals (N, P, D) that the critics like best."""
    pairs = graph("Concat", seen, proposed, axis=-1)
    critics = [
        {name: weight[number] for name, weight in weights.items() if name.startswith("critic.")}
        for number in range(len(weights["critic.0.weight"]))
    ]
    q = graph("Min", *(_mlp(graph, own, "critic", pairs) for own in critics))
    best = graph("ArgMax", graph("Squeeze", q, [-1]), axis=1, keepdims=1)
    return str(graph("GatherND", proposed, best, batch_dims=1))


def _mlp(graph: _Graph, weights: Arrays, group: str, x: str) -> str:
    """Adds linear layers with ReLU, or GELU and layer norm, between them, as `mocoda.engine.networks.mlp` does."""
    layers = sum(name.startswith(f"{group}.") and name.endswith(".weight") for name in weights)
    for layer in range(layers):
        x = graph("MatMul", x, weights[f"{group}.{layer}.weight"])
        x = graph("Add", x, weights[f"{group}.{layer}.bias"])
        if f"{group}.{layer}.scale" in weights:
            scale, shift = (weights[f"{group}.{layer}.{part}"][0] for part in ("scale", "shift"))
            x = graph("LayerNormalization", _gelu(graph, x), scale, shift, axis=-1, epsilon=EPSILON)
        elif layer < layers - 1:
            x = graph("Relu", x)
    return x


def _gelu(graph: _Graph, x: str) -> str:
    """Adds GELU by its tanh formula, which is an ONNX operator only since opset 20."""
    cubic = graph("Add", 1.0, graph("Mul", graph("Mul", x, x), CUBE))
    bent = graph("Tanh", graph("Mul", graph("Mul", x, cubic), SLOPE))
    return str(graph("Mul", graph("Mul", x, 0.5), graph("Add", bent, 1.0)))


def _check_same_actions(policy: Policy, model: onnx.ModelProto) -> None:
    """Raises unless the model acts as the policy does; an agent of your own class may act in other ways."""
    from onnx.reference import ReferenceEvaluator

    state = Stream(0, "onnx-trial").normal(TRIED, policy.state_width).numpy()
    given = {"observation": state}
    if isinstance(policy.agent, BCQ | DQC):
        given["noise"] = noise_for(policy, TRIED)
    (actions,) = ReferenceEvaluator(model).run(["action"], given)
    expected = np.asarray(policy.act(state))
    width = (policy.action_high - policy.action_low).numpy()
    alike = (np.abs(actions - expected) <= TOLERANCE * width).all(1)
    if alike.mean() < 0.9:  # of two proposals with the same value, either may be the best
        raise _no_onnx(policy, "it does not act by its network 'actor' and tanh alone")


def _no_onnx(policy: Policy, why: str) -> InputError:
    return InputError(
        f"the agent {policy.agent.name!r} cannot be written as ONNX: {why}. These can: td3-bc, bcq, cql, sac, gciql, "
        "dqc, and agents of your own whose act is policy(weights, 'actor', state)."
    )
