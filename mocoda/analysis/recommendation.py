"""The recommendation of a check: three plain sentences, and the reasons behind them with their numbers."""

from __future__ import annotations

from collections.abc import Iterator

from mocoda.analysis.advice import LOCAL_MIXTURE, MIXTURE, UNSTRATIFIED, VARIANTS, Advice, RecipeSamples

CERTAIN_ROWS = 1_000  # with fewer, nothing is certain
LITTLE_GAIN = 1.5  # times the recorded cells: not worth augmenting for
COUNTABLE = 0.5  # recorded cells per row: with more, most rows fill a cell of their own, and counts say nothing
DOSE = 4  # generated rows per recorded one, as measured in the experiment `dose`
NEAR, FAR = 3.0, 10.0  # times the held-out disagreement: as good as recorded, and hardly known
BADLY_PREDICTED = 0.3  # standard deviations of a step: recorded next states are better than a model's
BADLY_FITTED = 0.1  # nats per row behind one Gaussian
HARDLY_SEPARABLE = 0.55  # AUC up to which a classifier hardly separates drawn from recorded parent sets
BROKEN_SHARE, FAULTY_SHARE = 0.01, 0.05  # shares of rows that are a fault: with broken norms, and with anything else
SETTINGS = {
    "mocoda": "its default settings",
    UNSTRATIFIED: "stratified=False",
    LOCAL_MIXTURE: 'density="mixture"',
    MIXTURE: 'density="mixture", stratified=False',
}


def recommend(advice: Advice) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """The recipe worth trying, the recommendation in at most three sentences, and the details behind it."""
    details = list(_doubts(advice))
    unclear = [child for child in advice.children if child.outside > 0 and not child.missing]
    if advice.missing or unclear:
        details += [f"{str(edge)[0].upper()}{str(edge)[1:]}." for edge in advice.missing]
        details += [
            f"Factors outside {child.name}'s parents explain {_percent(child.outside)} of its error, though no single "
            "factor does."
            for child in unclear
        ]
        lacks = ", ".join(f"{edge.parent} -> {edge.child}" for edge in advice.missing)
        said = f"The graph lacks edges that the data shows: {lacks}." if lacks else ""
        said = said or f"The graph gives {' and '.join(child.name for child in unclear)} too few parents."
        way_out = "Add these edges" if lacks else "Add parents"
        consequence = f"{way_out} and check again before augmenting: recombined rows would get impossible next states."
        return None, (said, consequence), tuple(details)
    if len(advice.sets) == 1:
        said = (
            f"There is nothing to recombine: one parent set ({', '.join(advice.sets[0].factors)}) covers every factor."
        )
        way_out = "If some factors do not depend on each other, or only in some states, say so in the graph."
        return None, (said, way_out), tuple(details)
    graph = "No missing edge was found in the graph"
    graph += f", but {advice.rows:,} rows are too few to be certain." if advice.rows < CERTAIN_ROWS else "."
    details += choose_settings(advice)[1]
    countable = advice.recorded_cells < COUNTABLE * advice.rows
    if countable and advice.times_larger < LITTLE_GAIN:
        said = f"Train on the recorded rows: recombining reaches only {advice.times_larger:.2g} times what is recorded."
        return "emp", (graph, said), tuple(details)
    if countable or advice.times_larger >= LITTLE_GAIN:
        details.append(f"Recombining reaches {advice.times_larger:.3g} times what is recorded.")
    else:
        details.append(
            "How much recombining reaches cannot be counted: with so many columns, most rows fill a cell of their own."
        )
    recipe, said, why = _choose_recipe(advice)
    if recipe is None:
        return None, (graph, said), (*details, *why)
    why.append(
        "Where it was measured, fewer generated rows helped less and up to 64 per recorded row did no harm. On a robot "
        "with only 10,000 recorded rows, 64 helped most."
    )
    amount = f"Generate about {DOSE * advice.rows:,} rows, {DOSE} for each recorded one."
    return recipe, (graph, said, amount), (*details, *why)


def choose_settings(advice: Advice) -> tuple[str | None, list[str]]:
    """The best settings of recipe mocoda, one of VARIANTS, and why; None: the recipe cannot be used."""
    recipes = {one.name: one for one in advice.recipes}
    usable = [name for name in VARIANTS if name in recipes and recipes[name].not_here is None]
    if not usable:
        return None, []
    faults = {name: _faults(recipes[name], recipes["emp"], advice) for name in usable}
    chosen = min(usable, key=lambda name: (len(faults[name]), usable.index(name)))
    reasons = []
    for name in (chosen, *(name for name in usable if name != chosen)):
        if faults[name]:
            reasons.append(f"Recipe mocoda with {SETTINGS[name]}: {'; '.join(faults[name])}.")
        elif name in (chosen, MIXTURE):
            reasons.append(
                f"Recipe mocoda with {SETTINGS[name]}: its rows are as common as recorded ones, in ranges, norms, "
                "local graphs and parent sets."
            )
    if advice.min_support is not None:
        reasons.append(
            f"A filter of --min-support {advice.min_support:g} rejects most of the rows that have a part rarer than "
            "99% of recorded ones."
        )
    return chosen, reasons


def _faults(one: RecipeSamples, recorded: RecipeSamples, advice: Advice) -> list[str]:
    """What is wrong with the rows that a recipe draws, in words."""
    assert one.unsupported is not None and one.strange is not None
    assert one.outside is not None and one.broken is not None
    usual = recorded.unsupported or 0.0
    faults = []
    if one.broken > BROKEN_SHARE:
        vectors = " and ".join(f"({names})" for names, _ in one.vectors[:2])
        faults.append(f"{_percent(one.broken)} of its rows break the length of the unit vector {vectors}")
    if one.outside > FAULTY_SHARE:
        columns = " and ".join(f"{name} in {_percent(share)}" for name, share in one.columns[:2])
        faults.append(f"{_percent(one.outside)} leave a column's recorded range, such as {columns}")
    lost = [local for local in advice.local_graphs if local.recorded >= FAULTY_SHARE]
    lost = [local for local in lost if local.drawn[one.name] < 0.5 * local.recorded]
    if lost:
        worst = max(lost, key=lambda local: local.recorded)
        faults.append(
            f"the local graph with {worst.links} is drawn in {_percent(worst.drawn[one.name])} of the rows, and "
            f"recorded in {_percent(worst.recorded)}"
        )
    if one.strange > FAULTY_SHARE + (recorded.strange or 0.0):
        faults.append(f"{_percent(one.strange)} have local graphs that hardly any recorded row has")
    if one.unsupported > max(FAULTY_SHARE, 2 * usual):
        faults.append(
            f"{_percent(one.unsupported)} have a part that is rarer than 99% of those recorded where the same factors "
            f"are linked, against {_percent(usual)} of the recorded rows"
        )
    law = max((law for law in advice.laws if law.recipe == one.name), key=lambda law: law.auc, default=None)
    if law is not None and law.auc > HARDLY_SEPARABLE and law.low > 0.5:
        separates = f"a classifier separates its ({', '.join(law.factors)}) from recorded ones"
        faults.append(f"{separates}, AUC {law.auc:.2f} [{law.low:.2f}, {law.high:.2f}], where 0.5 is perfect")
    return faults


def _choose_recipe(advice: Advice) -> tuple[str | None, str, list[str]]:
    """The recipe, a sentence that recommends it, and details."""
    recipes = {one.name: one for one in advice.recipes}
    chosen, exchanges = choose_settings(advice)[0], recipes["coda"].not_here is None
    if chosen is None:
        reason = f"Recipe mocoda cannot be used: {recipes['mocoda'].not_here}"
        if exchanges:
            return "coda", "Try recipe coda, as recipe mocoda cannot be used.", [reason]
        return None, "No recipe is worth trying yet: record more rows.", [reason]
    relative = recipes[chosen].relative
    assert relative is not None
    worst = max(advice.children, key=lambda child: child.error)
    details = [f"The ensemble disagrees {relative:.2g} times as much on mocoda's rows as on held-out rows."]
    if worst.error > BADLY_PREDICTED and exchanges:
        details.append(
            f"{worst.name} is noisy, hard to learn, or lacks a parent that would need more rows to show. Only if it is "
            "noisy can a model be trusted. A large model may allow recipe mocoda."
        )
        error = f"a small model's error on {worst.name} is {100 * worst.error:.0f}% of a step"
        return "coda", f"Try recipe coda, whose next states are recorded ones: {error}.", details
    if relative > FAR:
        if exchanges:
            return "coda", "Try recipe coda, which needs no model: models hardly know the rows of mocoda.", details
        return None, "No recipe is worth trying yet: record more rows, or narrow the parent sets.", details
    options = [] if chosen == "mocoda" else [SETTINGS[chosen]]
    options += [f"--max-disagreement {NEAR * advice.disagreement:.2g}"] if relative > NEAR else []
    options += [] if advice.min_support is None else [f"--min-support {advice.min_support:g}"]
    even = recipes["mocoda-u"].relative
    if relative <= NEAR and even is not None and even <= NEAR:
        details.append("Recipe mocoda-u, which draws rare rows as often as common ones, is worth trying, too.")
    said = f"Try recipe mocoda with {' and '.join(options) or SETTINGS['mocoda']}"
    faulty = _faults(recipes[chosen], recipes["emp"], advice)
    return "mocoda", f"{said}{', though its rows are not quite like recorded ones' if faulty else ''}.", details


def _doubts(advice: Advice) -> Iterator[str]:
    if advice.rows < CERTAIN_ROWS:
        yield f"{advice.rows:,} rows are few: with fewer than {CERTAIN_ROWS:,}, nothing here is certain."
    for one in advice.sets:
        if one.mixture < one.gaussian - BADLY_FITTED:
            yield (
                f"The mixture of {', '.join(one.factors)} describes held-out rows worse than one Gaussian does (by "
                f"{one.gaussian - one.mixture:.2g} nats per row), so support is doubtful."
            )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
