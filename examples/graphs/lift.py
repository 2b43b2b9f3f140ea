"""A cart with a lift on it. Each has a motor of its own, but high up the load slows the cart down."""

edges = {
    "cart": ["cart", "drive"],
    "lift": ["lift", "hoist"],
}


def local(f):
    return {("lift", "cart"): f["lift.height"] > 0.5}


def reward(state, action, next_state):
    return terminal(state, action, next_state).float() - 1


def terminal(state, action, next_state):
    return (next_state > 0.8).all(1)


action = {"drive": "drive", "hoist": "hoist"}
