"""Brings a pretrained model's files to this machine, and names the reason when that fails."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Final

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from inferbench_runner.backends.base import Source
from inferbench_runner.backends.configuration import is_path, model_directory
from inferbench_runner.contract import ModelRef
from inferbench_runner.errors import (
    CacheUnwritableError,
    FetchFailedError,
    ModelAccessDeniedError,
    ModelNotFoundError,
    ModelUnsupportedError,
    RunnerError,
)

FILES: Final = [
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    # Of a tokenizer or an image processor.
    "added_tokens.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
]
"""What a model needs to run, alone and end to end: no code, no pickles, no weights in other formats."""

UNWRITABLE: Final = frozenset(
    {errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS}
)
"""Codes by which a file system says that nothing can be written there; a file in a folder's place is one of them."""

DENIED: Final = frozenset({401, 403})
"""HTTP codes by which the hub refuses an account."""

NATIVE: Final = re.compile(r"\(os error (\d+)\)")
"""How Rust's standard library writes an error code."""


def fetch(model: ModelRef) -> Source:
    """Return where the files are, after downloading what the hub's cache here lacks."""
    if is_path(model.id):
        return Source(directory=model_directory(model.id))
    try:
        directory = Path(snapshot_download(model.id, revision=model.revision, allow_patterns=FILES))
    except Exception as error:
        # The library has changed its HTTP client, and the two have no common base class of errors.
        raise explained(error, model) from error
    if not (directory / "config.json").is_file():
        msg = f"model.id: {model.id} has no config.json on the hub; name a repository that holds a transformers model."
        raise ModelUnsupportedError(msg)
    # The cache names a snapshot's folder by its commit.
    return Source(directory=directory, commit=directory.name)


def explained(error: Exception, model: ModelRef) -> RunnerError:
    """Return the typed failure for what the hub's client raised."""
    if isinstance(error, LocalEntryNotFoundError):
        # The client wraps what went wrong on the network when its cache has nothing either.
        cause = error.__cause__
        return explained(cause, model) if isinstance(cause, Exception) else FetchFailedError(model.id, error)
    match error:
        case GatedRepoError():
            failure: RunnerError = ModelAccessDeniedError(model.id)
        case RepositoryNotFoundError():
            failure = ModelNotFoundError(
                # The hub answers alike for a repository that isn't there and for one that the account may not see.
                f"model.id: the hub has no model {model.id}, or it is private; "
                "check the id, or give the pod a token in HF_TOKEN."
            )
        case RevisionNotFoundError():
            failure = ModelNotFoundError(
                f"model.revision: {model.id} has no revision {model.revision} on the hub; use a commit or tag it has."
            )
        case HfHubHTTPError(response=response) if getattr(response, "status_code", None) in DENIED:
            failure = ModelAccessDeniedError(model.id)
        case HFValidationError():
            failure = ModelNotFoundError(
                f"model.id: {model.id} is no valid hub id; write owner/name, or an absolute path."
            )
        case OfflineModeIsEnabled():
            failure = ModelNotFoundError(
                f"model.id: {model.id} is not in this pod's cache and HF_HUB_OFFLINE forbids a download; "
                "unset it, or mount the cache."
            )
        case _ if refusal := _unwritable(error):
            failure = CacheUnwritableError(constants.HF_HUB_CACHE, refusal)
        case _:
            failure = FetchFailedError(model.id, error)
    return failure


def _unwritable(error: Exception) -> OSError | None:
    """Return the file system's refusal, if it is one, also where only the text of the native downloader tells of it."""
    told = NATIVE.search(str(error))
    code = error.errno if isinstance(error, OSError) and error.errno else int(told[1]) if told else None
    return OSError(code, os.strerror(code)) if code in UNWRITABLE else None
