"""`attsvm inspect`: report what the heads of a pretrained model select on a text."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attsvm.cli.console import BadInput, Exit, Progress, check_writable, refusing
from attsvm.platform.files import locked
from attsvm.platform.summary import counted

if TYPE_CHECKING:
    from attsvm_pretrained.heads.media import MediaKind


# Folder in the report's directory that holds finished heads while other heads are unfinished.
RESUME = "unfinished"


def inspect(
    model: str,
    /,
    *,
    text: Path | None = None,
    images: Path | None = None,
    audio: Path | None = None,
    layers: str | None = None,
    rules: Path | None = None,
    out: Path = Path("attsvm-inspect"),
    texts: int = 300,
    queries: int = 64,
    seed: int = 0,
    memory: float = 2.0,
    dtype: str = "float32",
    device: str | None = None,
    effects: bool = False,
) -> int:
    """Report what every attention head of a pretrained model selects, by what margin, and whether that is chance.

    Writes index.html, one page per head and inspect.json. Ctrl-C keeps finished heads, and the same command continues
    from there. For a folder with checkpoints, it writes one page with types, hardness and margins over training steps,
    and Ctrl-C keeps finished checkpoints.

    Parameters
    ----------
    model
        Folder of a transformers model, its name on the Hugging Face hub, or the output folder of a Trainer with its
        folders checkpoint-STEP.
    text
        A text file, one text per line.
    images
        A folder of images, for a model that reads images.
    audio
        A folder of WAV files, for a model that reads sound.
    layers
        Layers to inspect, such as 0-2,5. By default all of them.
    rules
        A Python file that defines further types of heads. A function takes a head and returns, as booleans (n, T), the
        tokens that each query should attend to. A pair of regular expressions describes the texts of queries and of
        their tokens.
    out
        The directory to write.
    texts
        Largest number of lines, images or sounds to read.
    queries
        Number of queries in each SVM.
    seed
        Seed of all random numbers.
    memory
        GiB for attention patterns, in addition to the model. The texts that fit, at least two, are used for the SVMs;
        the others only for hardness and offsets.
    dtype
        Dtype of the computation: float32, bfloat16, float16, float64, or auto for the dtype of the stored weights.
    device
        Device of the model, such as cuda. By default the CPU.
    effects
        Also measure the effect of each head on the next tokens of eight texts: its direct effect on the logit, and the
        loss under replacements of its attention. For causal language models; about eighteen passes per head.
    """
    with refusing():
        for name, value, least in (("texts", texts, 2), ("queries", queries, 2), ("seed", seed, 0)):
            if value < least:
                raise BadInput(f"--{name} is {value}; at least {least} was expected.")
        if not memory > 0:
            raise BadInput(f"--memory is {memory:g}; a positive number of GiB was expected.")
        folder, reads = _only_one(text, images, audio)
        lines = [] if text is None else read_lines(text, texts)
        numbers = None if layers is None else read_layers(layers)
    check_writable(out, directory=True)
    try:
        from attsvm.platform.extras import MissingExtra
        from attsvm_pretrained.heads.loading import load
        from attsvm_pretrained.heads.media import read_media
        from attsvm_pretrained.inspection.checkpoints import saved_steps
        from attsvm_pretrained.inspection.inspection import inspect_model
        from attsvm_pretrained.selection.rules import read_rules

        with refusing():
            user_rules = None if rules is None else read_rules(rules)
            saved = saved_steps(Path(model).expanduser())
            if saved and reads is not None:
                raise BadInput(f"{model} holds checkpoints, which --{reads} does not read; --text was expected.")
            if saved and effects:
                raise BadInput(f"{model} holds checkpoints; with --effects one of its folders was expected.")
            if saved:
                options = {"layers": numbers, "rules": user_rules, "queries": queries, "seed": seed}
                options |= {"memory": int(memory * 2**30), "dtype": dtype, "device": device}
                return _over_checkpoints(saved, lines, out, short_name(model), options)
            if effects and reads is not None:
                raise BadInput(f"--effects measures next tokens, which --{reads} has none of; --text was expected.")
            network, tokenizer = load(model, reads, dtype=dtype, device=device, causal=effects)
            media = None if reads is None else read_media(folder, reads, network, model, texts)
    except MissingExtra as error:
        raise BadInput(str(error)) from error
    resumption = out / RESUME
    with Progress(f"finished heads are in {resumption}.") as progress, refusing(), locked(out):
        options: dict[str, Any] = {
            "media": media,
            "rules": user_rules,
            "name": short_name(model),
            "layers": numbers,
            "queries": queries,
            "seed": seed,
            "memory": int(memory * 2**30),
            "resume": resumption,
            "interval": progress.interval,
            "effects": effects,
        }
        inspection = inspect_model(network, tokenizer, lines, progress=progress, **options)
        is_stopped = progress.interrupted
        progress("Writing the pages", 1.0)
        from attsvm_pretrained.inspection import unfinished
        from attsvm_pretrained.report.inspection import headline, write_inspection

        page = write_inspection(inspection, out, shlex.join(["attsvm", *sys.argv[1:]]))
        if inspection.complete:
            unfinished.remove(resumption)
    if not inspection.complete:
        print("Stopped; the same command continues with the other heads.", file=sys.stderr)
    print(headline(inspection))
    print(f"Report: {page}")
    return Exit.INTERRUPTED if is_stopped else Exit.DONE


def _over_checkpoints(saved: dict[int, Path], lines: list[str], out: Path, name: str, options: dict[str, Any]) -> int:
    """Write the page of the checkpoints in a folder."""
    from attsvm_pretrained.inspection.checkpoints import over_checkpoints
    from attsvm_pretrained.report.checkpoints import write_checkpoints

    with Progress() as progress, refusing(), locked(out):
        series = over_checkpoints(saved, lines, progress=progress, interval=progress.interval, **options)
        is_stopped = progress.interrupted
        page = write_checkpoints(series, out, name, shlex.join(["attsvm", *sys.argv[1:]]))
    print(series.sentence)
    print(f"Report: {page}")
    return Exit.INTERRUPTED if is_stopped else Exit.DONE


def _only_one(text: Path | None, images: Path | None, audio: Path | None) -> tuple[Path, MediaKind | None]:
    """Return the input that was given, and its kind; raise BadInput unless exactly one of them is given."""
    sources: list[tuple[Path | None, MediaKind | None]] = [(text, None), (images, "images"), (audio, "audio")]
    inputs: list[tuple[Path, MediaKind | None]] = [(path, kind) for path, kind in sources if path is not None]
    if len(inputs) != 1:
        raise BadInput(f"{len(inputs)} of --text, --images and --audio are given; exactly one was expected.")
    return inputs[0]


def short_name(model: str) -> str:
    """Return the last part of a folder's path, or the name on the hub."""
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() else model


def read_lines(path: Path, most: int) -> list[str]:
    """Read the non-blank lines of a text file.

    Raises ValueError if there are fewer than two, or the file is not text.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        content = "\0"
    if "\0" in content:  # text has none, most other files do
        raise ValueError(f"{path} is no UTF-8 text; a text file with one text per line was expected.")
    lines = [line.strip() for line in content.splitlines()]
    texts = [line for line in lines if line][:most]
    if len(texts) < 2:
        raise ValueError(
            f"{path} has {counted(len(texts), 'line')} of text; two or more were expected, one text per line."
        )
    return texts


def read_layers(text: str) -> list[int]:
    """Read numbers and ranges: "0-2,5" is [0, 1, 2, 5]; raise ValueError if it has another form."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and (not last.isdigit() or int(last) < int(first))):
            raise ValueError(f"--layers is {text!r}; numbers and rising ranges such as 0-2,5 were expected.")
        numbers += range(int(first), int(last if dash else first) + 1)
    return list(dict.fromkeys(numbers))
