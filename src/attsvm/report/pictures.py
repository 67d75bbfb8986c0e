"""The figures of a study's report, with what to look at in each."""

from __future__ import annotations

from attsvm.plots.curves import correlation_figure, precision_figure
from attsvm.plots.locality import margins_figure
from attsvm.plots.patches import deciding_figure, selection_figure, support_figure
from attsvm.plots.spectra import spectrum_figure
from attsvm.report.page import Picture
from attsvm.study.results import Study
from attsvm.study.words import nouns


def pictures(study: Study) -> dict[str, Picture]:
    """List the figures that the results allow, by name."""
    runs, words = study.runs, nouns(study.setup.train)
    figures: list[Picture] = []
    curves = {name: run for name, run in runs.items() if run.curves}
    if curves:
        figures.append(_correlation(study))
        if min(study.setup.train.tokens.d, study.setup.train.tokens.dz) > 1:
            figures.append(_spectrum(study))
    if any(run.locality is not None for run in runs.values()):
        figures.append(
            Picture(
                "margins",
                lambda width: margins_figure(runs, study.setup.trial.gamma, width, words),
                f"Margin of every rejected {words.token} against how far it scores below the selected one.",
                f"Each dot is one {words.token} that was not selected. Dots at margin 1 determine the SVM; the "
                "selection is locally optimal if all of them lie above the line. Scores of dots further right do not "
                "matter.",
            )
        )
    if study.precision:
        figures.append(
            Picture(
                "precision",
                lambda width: precision_figure(runs["W"], study.precision, width),
                "Correlation with the SVM over training, for four kinds of arithmetic.",
                "The same steps in four kinds of arithmetic, compared with one SVM: the SVM of the tokens that exact "
                "float64 training selects.",
            )
        )
    if study.setup.train.patches is not None and runs:
        figures += _on_images(study)
    return {picture.name: picture for picture in figures}


def _correlation(study: Study) -> Picture:
    runs = {name: run for name, run in study.runs.items() if run.curves}
    return Picture(
        "correlation",
        lambda width: correlation_figure(runs, width),
        "Correlation of the trained matrix with the two SVMs and with three controls, over training steps.",
        "Correlation of the trained matrix with each direction; vertical axis: -log10(1 - correlation). The theory "
        "pairs W with the Frobenius SVM and K, Q with the nuclear one (heavy lines): only these should rise once the "
        "selection is final.",
    )


def _spectrum(study: Study) -> Picture:
    runs = {name: run for name, run in study.runs.items() if run.curves}
    return Picture(
        "spectrum",
        lambda width: spectrum_figure(runs, width),
        "Singular values of the trained matrix and of the two SVM solutions.",
        "Training W should reproduce the spectrum of the Frobenius SVM, training K and Q the short one of the nuclear "
        "SVM. Circles far below the last square or diamond stem from early steps and shrink as training goes on.",
    )


def _on_images(study: Study) -> list[Picture]:
    setup, runs, words = study.setup, study.runs, nouns(study.setup.train)
    figures = [
        Picture(
            "selection",
            lambda width: selection_figure(setup.train, runs, width),
            f"The number of training {words.rows} of each class in which the {words.token} at each place is selected.",
            f"The number of training {words.rows} whose selected {words.token} is at each place"
            + (", on the average image of the class." if study.bags is None else "."),
            own_colours=True,
        )
    ]
    bags = study.bags
    if bags is not None:
        figures.append(
            Picture(
                "deciding",
                lambda width: deciding_figure(setup.train, bags.instances, width),
                f"Training {words.rows}; a frame marks the {words.token} that decides.",
                f"Blue: the {words.token} that attention selects. The first {words.row} has the smallest margin, so "
                "the smallest change would alter its selection; the last has the largest.",
                own_colours=True,
            )
        )
    run = runs["W"]
    if run.own in run.curves:
        figures.append(
            Picture(
                "support",
                lambda width: support_figure(setup, run, width),
                f"Training {words.rows} with their selected {words.token} and their support {words.tokens}.",
                f"The {words.rows} with the largest multipliers. Blue: the {words.token} selected. Orange: support "
                f"{words.tokens}, thicker for a larger multiplier. Dotted: the best {words.token}, where another was "
                "selected.",
                own_colours=True,
            )
        )
    return figures
