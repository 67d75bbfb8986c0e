"""A model and its tokenizer, from a folder or from the hub."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from attsvm_pretrained.activations.backend import transformers
from attsvm_pretrained.heads.media import MediaKind, media_kind

_LOAD_ERRORS = (OSError, ValueError, ImportError, KeyError, RuntimeError, EOFError, UnpicklingError)
DTYPES = ("float32", "auto", "bfloat16", "float16", "float64")


def load(
    name: str,
    reads: MediaKind | None = None,
    *,
    dtype: str = "float32",
    device: str | None = None,
    tokenizes: bool = True,
    causal: bool = False,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder or, where there is a network, from the hub.

    Parameters
    ----------
    name : str
    reads : {"images", "audio"}, optional
        Default: text. For images and audio the tokenizer is None. If the model reads text and images, its image encoder
        is returned.
    dtype : {"float32", "auto", "bfloat16", "float16", "float64"}
        "auto" is the dtype of the stored weights.
    device : str, optional
        Such as "cuda". Default: the CPU.
    tokenizes : bool
        Whether to load the tokenizer of a model of text; otherwise it is None.
    causal : bool
        Whether to load the model with its language-model head.

    Raises
    ------
    ValueError
        If there is no such model, dtype or device, or the model cannot be fetched.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; one of {', '.join(DTYPES)} was expected.")
    tf = transformers()
    from huggingface_hub.utils import logging as hub_logging
    from safetensors import SafetensorError

    tf.utils.logging.disable_progress_bar()
    tf.utils.logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    folder = Path(name).expanduser()
    local = folder.is_dir()
    if not local and (folder.exists() or name.startswith((".", "/", "~"))):
        raise ValueError(f"{name} is no folder of a model; one with config.json and weights was expected.")
    if local and not (folder / "config.json").is_file():
        raise ValueError(f"{name} holds no config.json; a folder that save_pretrained wrote was expected.")
    source = str(folder) if local else name
    try:
        _refuse_other_inputs(tf.AutoConfig.from_pretrained(source), name, reads)
        tokenizer = tf.AutoTokenizer.from_pretrained(source) if reads is None and tokenizes else None
        kind = tf.AutoModelForCausalLM if causal else tf.AutoModel
        model = kind.from_pretrained(source, dtype=dtype)
    except _NoText:
        raise
    except (*_LOAD_ERRORS, SafetensorError) as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        if local:
            raise ValueError(f"the model in {name} could not be loaded: {reason}.") from error
        raise ValueError(
            f"{name} is no folder here, and could not be fetched from the Hugging Face hub; without a network "
            "the folder of a model that save_pretrained wrote was expected."
        ) from error
    try:
        model = model if device is None else model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split()).split(". ")[0]
        raise ValueError(f"device is {device!r}, which does not work ({reason}); another was expected.") from error
    if reads is None and not tokenizes:
        return model, None
    if tokenizer is None:
        return (model if media_kind(model) == reads else model.vision_model), None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


class _NoText(ValueError):
    """A model that does not read the given kind of inputs."""


def _refuse_other_inputs(config: Any, name: str, reads: MediaKind | None) -> None:
    """Refuse models that do not read the given kind of inputs."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    kind = MODEL_MAPPING.get(type(config), None)
    model_reads = media_kind(kind)
    if model_reads == reads or (reads == "images" and hasattr(config, "vision_config")):
        return
    input_name = getattr(kind, "main_input_name", "input_ids")
    remedy = "a text file (--text)" if model_reads is None else f"a folder of {model_reads} (--{model_reads})"
    raise _NoText(f"{name} is a {getattr(kind, '__name__', 'model')}, which reads {input_name}; {remedy} was expected.")
