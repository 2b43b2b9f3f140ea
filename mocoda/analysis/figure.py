"""The figure of a check: errors of children, densities of parent sets, what recipes draw, whether they keep the law."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mocoda.analysis.advice import LOCAL_MIXTURE, MIXTURE, UNSTRATIFIED, VARIANTS, Advice
from mocoda.engine.figures import BLUE, COLOURS, GREY, INK, RED, bare, save
from mocoda.parents import RECIPES

ERRORS = (
    ("heldout_factored", "factored, held-out rows", COLOURS["local"], ""),
    ("recombined_factored", "factored, recombined rows", COLOURS["local"], "///"),
    ("heldout_full", "unfactored, held-out rows", COLOURS["full"], ""),
    ("recombined_full", "unfactored, recombined rows", COLOURS["full"], "///"),
)
VARIANT_COLOURS = {UNSTRATIFIED: "#2a9d8f", LOCAL_MIXTURE: "#8fc9a8", MIXTURE: "#8a94a6"}
DENSITIES = (("independent", "independent columns", "|"), ("gaussian", "one Gaussian", "_"), ("box", "box", "x"))


def draw_advice(advice: Advice, path: Path) -> None:
    """Panels: errors of children, log densities of parent sets, samples of recipes; the law, and filters, if known."""
    panels = [_draw_children, _draw_sets, _draw_recipes]
    panels += [_draw_laws] if advice.laws else []
    panels += [_draw_filters] if advice.filters else []
    lines = 1 if len(panels) < 4 else 2
    across = -(-len(panels) // lines)
    figure = Figure(figsize=(5.2 * across, 4.8 * lines), layout="constrained")
    figure.suptitle(_headline(advice), x=0.01, ha="left", fontsize=13, color=INK)
    for place, draw in enumerate(panels, 1):
        axes = figure.add_subplot(lines, across, place)
        draw(axes, advice)
        bare(axes)
    save(figure, path)


def _headline(advice: Advice) -> str:
    if advice.missing:
        return "; ".join(str(edge) for edge in advice.missing[:3]) + (" …" if len(advice.missing) > 3 else "")
    larger = f"recombining reaches {advice.times_larger:.3g} times what is recorded"
    tried = "no recipe is worth trying yet" if advice.recipe is None else f"worth trying: {advice.recipe}"
    if advice.recipe == "mocoda" and (advice.density, advice.stratified) != ("matched", True):
        tried += f", density {advice.density}, {'' if advice.stratified else 'un'}stratified"
    return f"{larger}; {tried}"


def _draw_children(axes: Axes, advice: Advice) -> None:
    for number, (name, label, colour, hatch) in enumerate(ERRORS):
        errors = [100 * (getattr(child, name) or 0.0) for child in advice.children]
        places = [i + 0.2 * (number - 1.5) for i in range(len(errors))]
        axes.bar(places, errors, 0.18, color=colour, hatch=hatch, edgecolor="white", label=label)
    highest = [max(getattr(child, name) or 0.0 for name, *_ in ERRORS) for child in advice.children]
    for i, child in enumerate(advice.children):
        if child.missing:
            text = "misses " + ", ".join(edge.parent for edge in child.missing)
            axes.annotate(text, (i, 100 * highest[i]), (0, 4), textcoords="offset points", ha="center", color=RED)
    axes.set_yscale("log")
    axes.set_ylim(top=100 * 4 * max(highest))
    names = [child.name for child in advice.children]
    axes.set_xticks(range(len(names)), names, rotation=45 if len(names) > 4 else 0)
    axes.set_ylabel("error (% of a step's spread, log scale)")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_title("Children: how well they are predicted", loc="left", fontsize=11, color=INK)


def _draw_sets(axes: Axes, advice: Advice) -> None:
    """Relative to the mixture, so that columns of any unit compare."""
    places = list(range(len(advice.sets)))
    axes.axvline(0, color=BLUE, lw=2, label="mixture")
    for name, label, marker in DENSITIES:
        behind = [getattr(one, name) - one.mixture for one in advice.sets]
        axes.scatter(
            behind, places, marker=marker, s=120, linewidths=2, color=GREY if name == "box" else INK, label=label
        )
    axes.set_yticks(places, [", ".join(one.factors) for one in advice.sets])
    axes.set_ylim(len(places) - 0.5, -0.9)
    axes.set_xlabel("log density of held-out rows, less the mixture's (nats)")
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    axes.set_title("Parent sets: left of the line, the mixture is better", loc="left", fontsize=11, color=INK)


def _draw_recipes(axes: Axes, advice: Advice) -> None:
    shown = [one for one in advice.recipes if one.not_here is None]
    for one in shown:
        support, relative = 100 * (one.support or 0.0), one.relative or 0.0
        axes.scatter(support, relative, s=90, color=_colour(one.name), zorder=3)
        axes.annotate(one.name, (support, relative), (6, 5), textcoords="offset points", color=INK, fontsize=9)
    axes.axhline(1, color=GREY, lw=1, ls=":")
    axes.axvline(50, color=GREY, lw=1, ls=":")
    axes.set_yscale("log")
    axes.set_xlim(-4, 104)
    axes.set_xlabel("median support (% of the data as rare, or rarer)")
    axes.set_ylabel("disagreement (times that on held-out rows)")
    absent = ", ".join(one.name for one in advice.recipes if one.not_here is not None)
    title = "Recipes: what they draw" + (f" (not here: {absent})" if absent else "")
    axes.set_title(title, loc="left", fontsize=11, color=INK)


def _draw_laws(axes: Axes, advice: Advice) -> None:
    """One line a parent set; recipes that do not promise to keep its distribution are pale."""
    sets = list(dict.fromkeys(law.factors for law in advice.laws))
    recipes = list(dict.fromkeys(law.recipe for law in advice.laws))
    for number, recipe in enumerate(recipes):
        own = {law.factors: law for law in advice.laws if law.recipe == recipe}
        places = [i + 0.7 * ((number + 0.5) / len(recipes) - 0.5) for i in range(len(sets))]
        ends = [[own[s].auc - own[s].low for s in sets], [own[s].high - own[s].auc for s in sets]]
        promised = recipe in VARIANTS
        axes.errorbar(
            [own[s].auc for s in sets],
            places,
            xerr=ends,
            fmt="o",
            ms=7 if promised else 4,
            lw=2 if promised else 1,
            alpha=1 if promised else 0.5,
            color=_colour(recipe),
            label=recipe,
        )
    axes.axvline(0.5, color=GREY, lw=1, ls=":")
    axes.set_yticks(range(len(sets)), [", ".join(factors) for factors in sets])
    axes.set_ylim(len(sets) - 0.5, -0.5)
    axes.set_xlim(min(0.4, *(law.low for law in advice.laws)), 1.02)
    axes.set_xlabel("AUC of a held-out classifier, drawn against recorded")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.13), ncols=4)
    axes.set_title("The law: at 0.5, parent sets are drawn as recorded", loc="left", fontsize=11, color=INK)


def _colour(recipe: str) -> str:
    return VARIANT_COLOURS[recipe] if recipe in VARIANT_COLOURS else RECIPES[recipe].colour


def _draw_filters(axes: Axes, advice: Advice) -> None:
    for by, which, colour in (("disagreement", "least disagreement", BLUE), ("support", "most support", RED)):
        own = [one for one in advice.filters if one.by == by]
        kept, errors = [100 * one.kept for one in own], [100 * one.true_error for one in own]
        axes.plot(kept, errors, marker="o", color=colour, label=f"rows of {which}")
    axes.set_xlim(104, 0)
    axes.set_yscale("log")
    axes.set_xlabel("rows of recipe mocoda that are kept (%)")
    axes.set_ylabel("true error (% of a step's spread, log scale)")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    axes.set_title("Filters: what they do to the true error", loc="left", fontsize=11, color=INK)
