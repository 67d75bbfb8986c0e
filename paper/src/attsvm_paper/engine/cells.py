"""The cells of a run: the sweep of an experiment, with fields that the caller changed."""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attsvm_paper.engine.experiment import Effort, Experiment

# Largest number of trials per run; all rows are in memory at its end. The largest published figure has 44,200.
MOST_TRIALS = 1_000_000


def cells(experiment: Experiment, effort: Effort, overrides: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """List the configs of a run, each once, in the order of the sweep.

    Parameters
    ----------
    experiment : Experiment
    effort : {"quick", "full"}
    overrides : mapping, optional
        Values of config fields for all cells; a string is read as the field's type. Cells that become equal count once.

    Raises
    ------
    ValueError
        If there is no such field, or the value has the wrong type or is not allowed.
    """
    if effort not in ("quick", "full"):
        raise ValueError(f"effort is {effort!r}; 'quick' or 'full' was expected.")
    hints = get_type_hints(experiment.config)
    names = [field.name for field in fields(experiment.config)]
    values: dict[str, Any] = {}
    for name, value in (overrides or {}).items():
        if name not in names:
            raise ValueError(f"{name!r} is no parameter of {experiment.name}; one of {', '.join(names)} was expected.")
        values[name] = _value(experiment.name, name, value, hints[name])
    sweep = experiment.sweep(effort)
    try:
        configurations = tuple(dict.fromkeys(replace(config, **values) for config in sweep))
    except ValueError as error:
        raise ValueError(f"{experiment.name}: {error}") from error
    for name, value in values.items():
        # Counts and sizes are positive; only a field that is zero in some cell of the sweep may be zero.
        least = min(1, *(getattr(config, name) for config in sweep)) if type(value) is int else None
        if least is not None and value < least:
            raise ValueError(f"{name} is {value} for {experiment.name}; at least {least} was expected.")
    total = sum(config.trials for config in configurations)
    if total > MOST_TRIALS:
        raise ValueError(
            f"trials add up to {total:,} over the cells of {experiment.name}; at most {MOST_TRIALS:,} were expected."
        )
    return configurations


def parameters_hash(experiment: Experiment, configurations: tuple[Any, ...]) -> str:
    """Identify a run: a digest of all cells and of the batch size."""
    content = [experiment.batch, list(experiment.instance), [asdict(config) for config in configurations]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def parse_settings(texts: list[str]) -> dict[str, str]:
    """Split ``field=value`` texts.

    Raises
    ------
    ValueError
        If one has no equals sign, or a field is set twice.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not value.strip():
            raise ValueError(f"--set {text!r} cannot be read; FIELD=VALUE was expected.")
        if name in settings:
            raise ValueError(f"--set gives {name!r} twice; once was expected.")
        settings[name] = value.strip()
    return settings


def _value(experiment: str, name: str, value: Any, hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        candidate = _as(kind, value)
        if candidate is not _NO:
            return candidate
    expected = " or ".join(_describe(kind) for kind in kinds)
    raise ValueError(f"{name} of {experiment} is {value!r}; {expected} was expected.")


_NO = object()
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _as(kind: Any, value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else None
    if get_origin(kind) is Literal:
        matches = [choice for choice in get_args(kind) if value == choice or text == str(choice)]
        return matches[0] if matches else _NO
    if kind is types.NoneType:
        return None if value is None or text in ("none", "None") else _NO
    if kind is bool:
        return value if isinstance(value, bool) else _BOOLEANS.get((text or "").lower(), _NO)
    if kind is str:
        return value if text is not None else _NO
    if kind is int or kind is float:
        if isinstance(value, bool):
            return _NO
        try:
            number = kind(value if text is None else text)
        except (TypeError, ValueError):
            return _NO
        same = text is not None or number == value
        return number if same and math.isfinite(number) else _NO
    return value if isinstance(kind, type) and isinstance(value, kind) else _NO


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(kind))
    names = {int: "an integer", float: "a finite number", bool: "true or false", str: "a word", types.NoneType: "none"}
    return names.get(kind, str(kind))
