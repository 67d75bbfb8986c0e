"""Sentences of a report other than claims: the method, and the meaning of the large numbers."""

from __future__ import annotations

from dataclasses import dataclass

from attsvm.platform.summary import counted
from attsvm.study.results import ARRIVAL, Accuracy, Study
from attsvm.study.verdict import NEARER, NORM_NAMES
from attsvm.study.words import correlation_text, nouns, share_text


@dataclass(frozen=True)
class Tile:
    """A large number with its label; `match` marks the numbers on which the verdict rests."""

    value: str
    label: str
    note: str
    match: bool = False


def lede(study: Study) -> str:
    """Summarise the study in one or two sentences."""
    words, n = nouns(study.setup.train), study.setup.train.tokens.n
    opening = (
        f"One attention layer, trained on {counted(n, words.row, words.rows)} under a fixed linear head, compared with "
        f"the attention SVM of the {words.tokens} it selected."
    )
    if study.complete:
        return opening
    stage = f", in the stage “{study.stopped_in}”" if study.stopped_in else ""
    return f"{opening} The study was stopped early{stage}; later stages are missing."


def tiles(study: Study) -> list[Tile]:
    """Choose the numbers under the headline."""
    result = []
    for run in study.runs.values():
        name = "W" if run.parameterization == "W" else "K, Q"
        if run.correlation is None:
            continue
        rivals = [control.final for control in run.controls if not control.coincides]
        note = f"correlation; nearest control {correlation_text(max(rivals))}" if rivals else "correlation"
        label = f"{name} with its {NORM_NAMES[run.own]} SVM"
        result.append(Tile(correlation_text(run.correlation), label, note, match=True))
    plain = [run for run in study.precision if run.numerics == "autograd" and run.dtype == "float32"]
    if plain:
        note = f"correlation; its best was {correlation_text(float(plain[0].curve.max()))}"
        result.append(Tile(correlation_text(float(plain[0].curve[-1])), "where plain float32 autograd ends", note))
    trained = {row.key: row for row in study.accuracies}
    if "W" in trained:
        row, test = trained["W"], study.setup.test
        value, on = (row.train, "training") if row.test is None or test is None else (row.test, "test")
        count = study.setup.train.tokens.n if on == "training" or test is None else test.tokens.n
        words = nouns(study.setup.train)
        result.append(
            Tile(
                share_text(value), f"of {counted(count, words.row, words.rows)} right, {on}", _comparisons(trained, on)
            )
        )
    return result


def _comparisons(rows: dict[str, Accuracy], on: str) -> str:
    """Return the accuracies with which the accuracy of trained W is compared."""
    others = [("uniform attention", rows["uniform"])]
    if "W_shuffled_labels" in rows:
        others.append(("shuffled labels", rows["W_shuffled_labels"]))
    shares = ((name, row.test if on == "test" else row.train) for name, row in others)
    return "attention by trained W; " + ", ".join(f"{name} {share_text(share)}" for name, share in shares)


def accuracy_sentence(study: Study) -> str:
    """Compare the head alone with trained attention."""
    rows = {row.key: row for row in study.accuracies}
    words = nouns(study.setup.train)
    if "W" not in rows:
        return ""
    held_out = rows["W"].test is not None
    uniform, trained = (rows[key].test if held_out else rows[key].train for key in ("uniform", "W"))
    return (
        f"On {'held-out' if held_out else 'training'} {words.rows} the head alone, averaging all {words.tokens}, is "
        f"right in {share_text(uniform)}; trained attention is right in {share_text(trained)}. Training maximises a "
        f"margin, not accuracy: either number may be the larger.{_shuffled_labels(study)}"
    )


def _shuffled_labels(study: Study) -> str:
    control = study.shuffled_labels.get("W")
    if control is None:
        return ""
    steps = counted(control.steps, "step")
    return (
        f" The control refits the head and trains again, {steps}, on labels permuted among all "
        f"{nouns(study.setup.train).rows}. The theory holds for those labels too: training selects "
        "tokens and approaches their SVM. Only rows held out show whether the labels were learnt."
    )


def method(study: Study) -> list[tuple[str, str]]:
    """Describe each step and the reason for its settings: (step, method and reason)."""
    setup, settings, words = study.setup, study.settings, nouns(study.setup.train)
    tokens = setup.train.tokens
    sizes = setup.train.mask.sum(axis=1)
    size = f"{tokens.T}" if sizes.min() == tokens.T else f"{sizes.min()} to {sizes.max()}"
    held_out = "nothing is held out" if setup.test is None else f"{setup.test.tokens.n:,} are held out"
    sources = (
        " The mean training query is subtracted from every query, the result scaled to mean length one, and a constant "
        "coordinate appended. This increases the margin, and training converges faster."
        if setup.centred
        else ""
    )
    if setup.head.penalty is None:
        head = "The head v was given with the data; it was scaled to length one."
    else:
        head = (
            f"The head v is the ridge regression of the labels on the mean {words.token} of each training {words.row} "
            f"(penalty {setup.head.penalty:.2g} of the mean squared length, by leave-one-out error): the best "
            "linear classifier of the outputs of uniform attention, W = 0. It is fixed before attention is trained, "
            f"as the theory assumes; it gives every {words.token} its score, the label times v·x."
        )
    return [
        (
            "Data",
            " ".join(setup.train.notes)
            + f" {tokens.n:,} {words.rows} are drawn at random for training and {held_out}; {size} {words.tokens} "
            f"each, tokens of dimension {tokens.d}, queries of dimension {tokens.dz}.{sources} Tokens and queries are "
            "divided by their mean training length, so that the step length means the same for any data; the SVM's "
            "direction does not depend on it.",
        ),
        ("Head", head),
        (
            "Training",
            f"{counted(settings.steps, 'step')} of normalised gradient descent on the logistic loss, doubled up "
            f"to {settings.budget:,} as long as the direction or the attention still improves. W starts at zero, as "
            f"the theory assumes, with steps of length {settings.lr:g}; K starts at 0.1 N(0,1) and Q at zero, "
            "with joint steps of 0.5 ‖(K,Q)‖/√k, since normalising K and Q separately stalls before the nuclear "
            "solution. The gradient is taken relative to the token attended to most, so that nothing cancels when "
            "attention saturates.",
        ),
        (
            "SVMs",
            f"The smallest W, in Frobenius or nuclear norm, whose logits place the realised {words.token} at least 1 "
            "above every other, each certified by a duality gap recomputed from W and the multipliers. Ranks count "
            "singular values above the error that the gap allows.",
        ),
        (
            "Controls",
            f"The SVM after the selections were permuted among the {words.rows} ({settings.shuffles} times; "
            "they count with the limit below which 39 in 40 further ones would stay); the Hebbian direction, the sum "
            f"over {words.rows} of (selected {words.token} − mean of the others) times query; the SVM of the "
            f"{words.tokens} with the best scores. Each has the norm of the run with which it is compared. Arrival "
            f"requires a correlation of {ARRIVAL} and an angle to the SVM {NEARER:.0f} times smaller than to any "
            "control.",
        ),
    ]
