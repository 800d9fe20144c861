"""A model's configuration: the catalogue's or a directory's, with the plan's overrides checked and applied."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue
from transformers import AutoConfig

from inferbench_runner.backends.tasks import Configuration
from inferbench_runner.catalogue import known_configuration
from inferbench_runner.contract import ModelRef
from inferbench_runner.errors import InvalidModelConfigError, ModelNotFoundError, ModelUnsupportedError
from inferbench_runner.words import listed

FIXED: Final = frozenset(
    {
        "architectures", "auto_map", "dtype", "torch_dtype", "is_decoder", "is_encoder_decoder", "model_type",
        "output_attentions", "output_hidden_states", "return_dict", "transformers_version",
    }
)  # fmt: skip
"""Keys that another field of the plan decides, or whose change would make the model uncallable."""


def is_path(model_id: str) -> bool:
    """Whether the id names a directory on this machine: hub ids never start with a slash."""
    return model_id.startswith("/")


def model_directory(model_id: str) -> Path:
    """Return the directory that the id names, or raise `ModelNotFoundError`."""
    directory = Path(model_id)
    try:
        found = (directory / "config.json").is_file()
    except OSError as error:
        msg = f"model.id: {model_id[:40]}… is no path ({error.strerror}); name the directory with the model's files."
        raise ModelNotFoundError(msg) from error
    if not found:
        what = "has no config.json" if directory.is_dir() else "is no directory in this pod"
        msg = f"model.id: {model_id} {what}; name the directory that holds the model's files, and mount its volume."
        raise ModelNotFoundError(msg)
    return directory


def read_configuration(directory: Path) -> Configuration:
    """Return the configuration in a directory; code that lies beside it is never run."""
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # Which exceptions a configuration raises differs by library version and architecture.
        msg = f"model.id: config.json of {directory} can't be used; use an architecture that transformers has: {error}"
        raise ModelUnsupportedError(msg) from error


def random_configuration(model: ModelRef) -> Configuration:
    """Return the configuration for random weights, with the plan's overrides."""
    if is_path(model.id):
        base = read_configuration(model_directory(model.id))
    else:
        known = known_configuration(model.id)
        base = AutoConfig.for_model(str(known.pop("model_type")), **known)
    return override(base, model.config) if model.config else base


def override(base: Configuration, overrides: Mapping[str, JsonValue]) -> Configuration:
    """Return a new configuration with the overrides, or raise `InvalidModelConfigError` for the first that is wrong."""
    values: dict[str, Any] = base.to_dict()
    aliases: dict[str, str] = base.attribute_map
    known = {"num_labels": base.num_labels, **{alias: values.get(name) for alias, name in aliases.items()}, **values}
    for key, value in overrides.items():
        _check(key, value, known)
    # An alias and its target in one dictionary would leave it to the library which of them wins.
    changed = {aliases.get(key, key): value for key, value in overrides.items()}
    if "num_labels" in changed:
        values.pop("id2label", None)
        values.pop("label2id", None)
    try:
        return type(base).from_dict({**values, **changed})
    except Exception as error:
        # Which exceptions a configuration raises differs by library version and architecture.
        raise refused(error) from error


def refused(error: Exception) -> InvalidModelConfigError:
    """Return the failure of overrides that the architecture itself refuses."""
    return InvalidModelConfigError(f"model.config: the architecture refuses these overrides; correct them: {error}")


def _check(key: str, value: JsonValue, known: Mapping[str, Any]) -> None:
    allowed = sorted(name for name in known if name not in FIXED and not name.startswith("_"))
    if key in FIXED:
        msg = f"model.config.{key}: this key can't be overridden; leave it out."
        raise InvalidModelConfigError(msg)
    if key not in allowed:
        nearest = difflib.get_close_matches(key, allowed, n=3, cutoff=0.5)
        hint = f"did you mean {listed(nearest)}" if nearest else "see the model's config.json for its keys"
        msg = f"model.config.{key}: the model's configuration has no such key; {hint}?"
        raise InvalidModelConfigError(msg if nearest else msg.replace("?", "."))
    if not _same_kind(value, known[key]):
        wanted = type(known[key]).__name__
        msg = f"model.config.{key}: {value!r} is a {type(value).__name__}; write a value of type {wanted}."
        raise InvalidModelConfigError(msg)


def _same_kind(value: JsonValue, current: object) -> bool:
    """Whether a JSON value can take the place of the current one; nothing is known about a key that is None."""
    match current:
        case None:
            return True
        case bool():
            return isinstance(value, bool)
        case int():
            return isinstance(value, int) and not isinstance(value, bool)
        case float():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return value is None or isinstance(value, type(current))
