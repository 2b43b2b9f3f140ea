"""In which order parent sets are drawn."""

from __future__ import annotations

from collections.abc import Sequence


def drawing_order(sets: Sequence[Sequence[int]], preferred: Sequence[int] | None = None) -> list[int]:
    """The numbers of all sets of columns in the order to draw them, the preferred ones as early as the tree allows.

    The next one is always that which shares the most columns with a single set already drawn.
    """
    columns = [set(one) for one in sets]
    rest = list(range(len(columns)) if preferred is None else preferred)
    order, rest = rest[:1], rest[1:]
    while rest:
        nearest = max(rest, key=lambda new: max(len(columns[new] & columns[old]) for old in order))
        rest.remove(nearest)
        order.append(nearest)
    return order
