"""Read the weights of a training run from its checkpoints on disk."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attsvm.platform.extras import extra_for

if TYPE_CHECKING:
    from torch import Tensor, nn

STATES = (".pt", ".pth", ".bin", ".safetensors")
# Keys under which training loops store the state dict of the model, next to the state of the optimiser.
_NESTED = ("state_dict", "model_state_dict", "model")
# The model's files in a checkpoint folder of transformers, in one piece or several.
_MODEL_FILES = ("model*.safetensors", "pytorch_model*.bin")


def checkpoints_in(folder: str | Path) -> dict[int, Path]:
    """Find the checkpoints of a run: folders or files of state dicts whose names end with the step.

    Returns
    -------
    dict of int to Path
        Paths by step, in increasing order, without step 0.

    Raises
    ------
    ValueError
        If there is none.
    """
    found: dict[int, Path] = {}
    for path in Path(folder).glob("*"):
        step = re.search(r"(\d+)$", path.name if path.is_dir() else path.stem)
        if step and int(step[1]) and (_files(path) if path.is_dir() else path.suffix in STATES):
            found[int(step[1])] = path
    if not found:
        raise ValueError(
            f"folder {str(folder)!r} has no checkpoint; folders or {', '.join(STATES)} files whose names end with the "
            "step were expected."
        )
    return dict(sorted(found.items()))


def read_weights(path: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Read weights of a checkpoint, on the CPU.

    Parameters
    ----------
    path : Path
        From :func:`checkpoints_in`.
    names : iterable of str
        The checkpoint may have a prefix before each: "module.classifier.weight" matches "classifier.weight".

    Returns
    -------
    dict of str to Tensor
        In the order of the names.

    Raises
    ------
    ValueError
        If a weight is missing.
    """
    wanted = list(names)
    weights = _read(path, wanted)
    _refuse_missing(path, [name for name in wanted if name not in weights])
    return {name: weights[name] for name in wanted}


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint into a model; weights that share memory may be saved once.

    Parameters
    ----------
    path : Path
        From :func:`checkpoints_in`.

    Raises
    ------
    ValueError
        If a weight is missing.
    """
    state = model.state_dict()
    weights = _read(path, list(state))
    memory = {state[name].data_ptr() for name in weights}
    _refuse_missing(path, [name for name, weight in state.items() if weight.data_ptr() not in memory])
    model.load_state_dict(weights, strict=False)


def _refuse_missing(path: Path, missing: list[str]) -> None:
    if missing:
        raise ValueError(f"checkpoint {str(path)!r} has no {missing[0]}; the state dict of the model was expected.")


def _files(folder: Path) -> list[Path]:
    return next((found for pattern in _MODEL_FILES if (found := sorted(folder.glob(pattern)))), [])


def _read(path: Path, names: list[str]) -> dict[str, Tensor]:
    """Read the named weights that a checkpoint has."""
    weights: dict[str, Tensor] = {}
    for file in _files(path) if path.is_dir() else [path]:
        weights |= _read_file(file, names)
    return weights


def _read_file(file: Path, names: list[str]) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        with extra_for("attsvm.MarginRecorder.from_checkpoints"):
            from safetensors import safe_open
        with safe_open(file, framework="pt") as state:
            return {name: state.get_tensor(key) for name, key in _keys(names, state.keys()).items()}
    import torch

    state = torch.load(file, map_location="cpu", weights_only=True)
    state = next((state[key] for key in _NESTED if isinstance(state.get(key), dict)), state)
    return {name: state[key] for name, key in _keys(names, state).items()}


def _keys(names: list[str], keys: Iterable[str]) -> dict[str, str]:
    """Match names with keys: the key itself, or the only one that ends with the name."""
    available = list(keys)
    matched: dict[str, str] = {}
    for name in names:
        endings = [key for key in available if key == name or key.endswith(f".{name}")]
        if name in endings:
            matched[name] = name
        elif len(endings) == 1:
            matched[name] = endings[0]
    return matched
