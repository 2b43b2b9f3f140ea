"""A cart with a lift on it, each with a motor of its own; the job is to bring the load across and up."""

action = {"drive": "drive", "hoist": "hoist"}  # two factors; by default the action is one
edges = {
    "cart": ["cart", "drive"],
    "lift": ["lift", "hoist"],
}


def reward(state, action, next_state):
    return terminal(state, action, next_state).float() - 1


def terminal(state, action, next_state):
    return (next_state > 0.8).all(1)
