"""`attsvm study`: from a data set to a verdict."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from attsvm.cli.console import BadInput, Exit, Progress, check_writable, refusing, tell
from attsvm.data.dataset import Dataset
from attsvm.data.npz import read_dataset
from attsvm.data.table import TABLES
from attsvm.platform.files import locked, take_up
from attsvm.platform.threads import one_thread
from attsvm.study.files import NUMBERS, PAGE, file_in_the_way
from attsvm.study.results import Settings, Study

if TYPE_CHECKING:
    from attsvm.study.verdict import TheoryClaim

DEFAULT = Path("attsvm-study")
DIGITS = {"classes": "3-8", "query": "mean", "patch": 5, "positions": "place"}
MARKS = {True: "✓", False: "✗", None: "?"}


def study(
    data: str,
    /,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    train: int | None = None,
    steps: int = 20_000,
    lr: float = 1.0,
    seed: int = 0,
    max_steps: int | None = None,
    shuffles: int = 10,
    time_limit: float = 20.0,
    classes: str = "3-8",
    query: str = "mean",
    patch: int = 5,
    positions: str = "place",
    text: str | None = None,
    label: str | None = None,
    model: str | None = None,
    bag: str | None = None,
) -> int:
    """Train attention on a data set and compare it with the SVM of the tokens it selects.

    Writes report.html, verdict.json and figures/. Ctrl-C keeps finished work.

    Parameters
    ----------
    data
        "bags" (sequences of scikit-learn's digits in which one digit decides); "patches" or "digits" (the same 8x8
        images, cut into 2x2-pixel patches); a .npz file with tokens (n, T, d), queries (n, dz), labels (n,) of -1 and
        +1, and optionally mask (n, T) and head (d,); or a .csv or .tsv file of labelled texts, or of instances in
        labelled bags.
    out
        The directory to write, which must not contain a study. By default attsvm-study, or attsvm-study-2 and so on if
        it exists: studies are neither lost nor mixed.
    overwrite
        Replace the study that the directory holds.
    train
        Number of training rows, drawn at random; the others are held out. By default three quarters, or fewer if
        training would take more than about two minutes (digits: 100).
    steps
        Number of training steps. Training is continued while it still improves.
    max_steps
        Largest number of steps with continued training; by default ten times --steps.
    lr
        Length of a step of W, for tokens and queries of mean length one.
    seed
        Seed of all random numbers.
    shuffles
        Number of shuffled selections among the controls, and of trainings on shuffled labels.
    time_limit
        Seconds per SVM.
    classes
        Digits: two digits such as 3-8, or odd-even. Texts: two of the labels, such as good,bad, if there are more.
    query
        Digits only: mean (the image's mean token), patch (self-attention) or prompt (one for all images).
    patch
        Digits only: index of the query patch with --query patch, 0 to 15, row by row.
    positions
        Digits only: place (each patch at its position on a blank image) or append (pixels, then position).
    text
        Texts only, required: the name of the column of texts.
    label
        Texts and bags only, required: the name of the column of labels, which has two values.
    model
        Texts only: folder or hub name of a transformers model whose last hidden states are the tokens. By default words
        are tokens, with vectors fitted on the file.
    bag
        Tables of instances only, one instance per row: the name of the column that names its bag. Other columns of
        numbers are features.
    """
    columns = {"text": text, "label": label, "model": model, "bag": bag}
    options = {"classes": classes, "query": query, "patch": patch, "positions": positions}
    with refusing():
        settings = Settings(train, steps, lr, seed, shuffles, time_limit, max_steps)
        if out is not None:  # a first check, before the data are read
            _refuse_replacing(out, overwrite)
        dataset = _read_data(data, options, columns, train)
    with refusing():
        # Imported before training: Ctrl-C during a later import would prevent writing the result.
        from attsvm.report.study import write_numbers, write_study
        from attsvm.study.run import prepare, run
        from attsvm.study.verdict import claims

        setup = prepare(dataset, settings)
    command = shlex.join(["attsvm", *sys.argv[1:]])
    with _locked_directory(out, overwrite) as directory:
        with Progress() as progress:
            result = run(setup, settings, progress)
        assertions = claims(result)
        _say(result, assertions)
        with refusing(values=False), one_thread():
            try:
                tell("Drawing the report. Ctrl-C skips it and writes only the numbers.", sys.stderr)
                page = write_study(result, assertions, directory, command)
            except KeyboardInterrupt:
                print(f"Numbers: {write_numbers(result, assertions, directory, command)}")
                return Exit.INTERRUPTED
    print(f"Report: {page}")
    return Exit.INTERRUPTED if progress.interrupted else Exit.DONE


@contextmanager
def _locked_directory(out: Path | None, overwrite: bool) -> Iterator[Path]:
    """Lock the directory to write; it must not contain a study or be in use, unless the study is to be replaced."""
    choices = [out] if out is not None else (Path(f"{DEFAULT}-{i}" if i > 1 else DEFAULT) for i in count(1))
    for directory in choices:
        check_writable(directory, directory=True)
        with ExitStack() as stack:
            try:
                with refusing():
                    stack.enter_context(locked(directory))
                    take_up(directory, "files")
                    _refuse_replacing(directory, overwrite)
            except BadInput:
                if out is not None:
                    raise
                continue
            yield directory
            return


def _refuse_replacing(directory: Path, overwrite: bool) -> None:
    name = None if overwrite else file_in_the_way(directory)
    if name is not None:
        has = "a study already" if name in (PAGE, NUMBERS) else f"{name}, which a study would replace"
        raise BadInput(f"--out {directory} holds {has}; another directory was expected, or --overwrite.")


def _read_data(data: str, options: dict[str, str | int], columns: dict[str, str | None], train: int | None) -> Dataset:
    if Path(data).suffix.lower() in TABLES:
        options_of = options | {"classes": DIGITS["classes"]}
        _refuse_foreign(options_of)
        classes = None if options["classes"] == DIGITS["classes"] else str(options["classes"])
        return _read_table(data, classes, train, **columns)
    flags = [f"--{name}" for name, value in columns.items() if value is not None]
    if flags:
        raise BadInput(f"{' and '.join(flags)} can only be given with a table; a .csv or .tsv file was expected.")
    if data in ("digits", "patches"):
        from attsvm.data.digits import digits

        return digits(**options)  # type: ignore[arg-type]
    if data == "bags":
        from attsvm.data.digits import bags_of_digits

        _refuse_foreign(options)
        return bags_of_digits()
    if Path(data).suffix != ".npz":
        raise BadInput(
            f"{data!r} is no data set; 'bags', 'patches' or the path of a .npz, .csv or .tsv file was expected."
        )
    _refuse_foreign(options)
    return read_dataset(data)


def _refuse_foreign(options: dict[str, str | int]) -> None:
    foreign = [f"--{name}" for name, value in options.items() if value != DIGITS[name]]
    if foreign:
        raise BadInput(f"{' and '.join(foreign)} can only be given with the digits; 'digits' was expected.")


def _read_table(
    data: str,
    classes: str | None,
    train: int | None,
    text: str | None,
    label: str | None,
    model: str | None,
    bag: str | None,
) -> Dataset:
    if label is None or (text is None) == (bag is None) or (bag is not None and model is not None):
        raise BadInput(
            f"{data} needs --label with --text or with --bag; the names of its columns of labels and of texts, or of "
            "bags of instances, were expected."
        )
    pair = None
    if classes is not None:
        first, comma, second = classes.partition(",")
        if not comma or "," in second:
            raise BadInput(f"--classes is {classes!r}; two labels joined by a comma, such as good,bad, were expected.")
        pair = first.strip(), second.strip()
    if bag is not None:
        from attsvm.data.bag_table import read_bag_table

        return read_bag_table(data, bag, label, pair)
    return _read_texts(data, str(text), label, pair, train, model)


def _read_texts(
    data: str, text: str, label: str, pair: tuple[str, str] | None, train: int | None, model: str | None
) -> Dataset:
    from attsvm.data.table import read_texts
    from attsvm.data.text import (
        MOST_DIMENSIONS,
        MOST_ROWS,
        MOST_STATES,
        MOST_TOKENS,
        from_vectors,
        principal_components,
        word_dataset,
    )

    texts = read_texts(data, text, label, pair)
    most = MOST_ROWS if train is None else max(MOST_ROWS, 2 * train)
    if model is None:
        return word_dataset(texts, most=most)
    from attsvm.platform.extras import MissingExtra, extra_for

    try:
        with extra_for("--model"):
            from attsvm_pretrained.heads.hidden import hidden_spans, hidden_states
            from attsvm_pretrained.heads.loading import load

        transformer, tokenizer = load(model)
        if train is None:
            width = getattr(transformer.config, "hidden_size", MOST_DIMENSIONS)  # some composite models have none
            most = min(most, MOST_STATES // (MOST_TOKENS * width))
        _, texts = texts.drawn(most)
        sequences = hidden_states(transformer, tokenizer, texts.texts, MOST_TOKENS + 1)  # one more to recognise a cut
        spans = hidden_spans(tokenizer, texts.texts)
    except MissingExtra as error:
        raise BadInput(str(error)) from error
    name = Path(model).expanduser().resolve().name if Path(model).expanduser().is_dir() else model
    reduced, share = principal_components(sequences, MOST_DIMENSIONS)
    note = (
        f"Tokens are the last hidden states of {name}, frozen, without its special tokens, in their first "
        f"{reduced[0].shape[1]} principal components ({100 * share:.0f} % of their variance)."
    )
    return from_vectors(texts, reduced, (note,), spans)


def _say(result: Study, assertions: list[TheoryClaim]) -> None:
    from attsvm.study.headline import cautions, headline

    print(headline(result, assertions))
    if not result.complete:
        print("  ! Stopped early; what follows rests on the completed stages.")
    for caution in cautions(result):
        print(f"  ! {caution}")
    if result.bags is not None:
        print(f"  {result.bags.guarantee}")
    for claim in assertions:
        print(f"  {MARKS[claim.holds]} {claim.sentence}")
        if claim.remedy:
            print(f"      {claim.remedy}")
