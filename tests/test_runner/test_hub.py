"""Downloads with the hub's real client, from a server on the loopback interface that answers as the hub does."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub", reason="install the torch extra to test downloads")

from huggingface_hub import constants

from inferbench_runner.backends.hub import explained, fetch
from inferbench_runner.contract import FailureReason, ModelRef
from inferbench_runner.errors import RunnerError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WANTED = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "preprocessor_config.json": b"{ }",
    "tokenizer.json": b"{  }",
    "tokenizer_config.json": b"{   }",
    "vocab.txt": b"[PAD]",
}
REPOSITORY = WANTED | {"model.bin": b"pickle", "code.py": b"evil", "onnx/model.onnx": b"graph", "README.md": b"words"}

Answer = tuple[int, dict[str, str], bytes]


def answer_as_hub(path: str) -> Answer:
    """Serve one small repository, the way the hub does."""
    if "/revision/" in path:
        siblings = [{"rfilename": name} for name in REPOSITORY]
        return 200, {}, json.dumps({"id": "a/b", "sha": COMMIT, "siblings": siblings}).encode()
    if "/tree/" in path:
        entries = [{"type": "file", "path": n, "size": len(b), "oid": "0" * 40} for n, b in REPOSITORY.items()]
        return 200, {}, json.dumps(entries).encode()
    body = REPOSITORY[path.partition(f"/resolve/{COMMIT}/")[2]]
    return 200, {"ETag": f'"{len(body)}"', "X-Repo-Commit": COMMIT}, body


@contextmanager
def hub(answer: Callable[[str], Answer]) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server that gives these answers, and the list of paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            status, headers, body = answer(path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  # the name that the base class looks up

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_other_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache and no proxy."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Point the client at the server."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


def failure(model_id: str = "a/b", **fields: Any) -> RunnerError:  # noqa: ANN401  # passed through
    """Return what fetching this model raises."""
    with pytest.raises(RunnerError) as caught:
        fetch(ModelRef(id=model_id, **fields))
    return caught.value


@pytest.mark.parametrize(
    ("status", "code", "reason", "words"),
    [
        (404, "RepoNotFound", FailureReason.MODEL_NOT_FOUND, "check the id"),
        (404, "RevisionNotFound", FailureReason.MODEL_NOT_FOUND, "no revision v9"),
        # Without a token the hub doesn't say whether a repository is private or absent.
        (401, "RepoNotFound", FailureReason.MODEL_NOT_FOUND, "HF_TOKEN"),
        (401, "", FailureReason.MODEL_ACCESS_DENIED, "HF_TOKEN"),
        (401, "GatedRepo", FailureReason.MODEL_ACCESS_DENIED, "accept its terms"),
        (403, "GatedRepo", FailureReason.MODEL_ACCESS_DENIED, "accept its terms"),
        (403, "", FailureReason.MODEL_ACCESS_DENIED, "HF_TOKEN"),
        (500, "", FailureReason.FETCH_FAILED, "network"),
    ],
)
def test_refusals(monkeypatch: pytest.MonkeyPatch, status: int, code: str, reason: FailureReason, words: str) -> None:
    """Each answer of the hub becomes the reason that says whether and what to change."""
    headers = {"X-Error-Code": code} if code else {}
    with hub(lambda _: (status, headers, b"{}")) as (endpoint, _):
        use(monkeypatch, endpoint)
        found = failure(revision="v9")
    assert found.reason is reason, str(found)
    assert words in str(found)


def test_no_connection_is_a_failed_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that can't be reached is worth another try."""
    with hub(answer_as_hub) as (endpoint, _):
        pass
    use(monkeypatch, endpoint)
    found = failure()
    assert found.reason is FailureReason.FETCH_FAILED
    assert found.reason.retryable


def test_offline_mode_without_the_files_is_not_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """With HF_HUB_OFFLINE set, a model outside the cache stays outside."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = failure()
    assert found.reason is FailureReason.MODEL_NOT_FOUND
    assert "HF_HUB_OFFLINE" in str(found)


def test_an_id_that_is_none_is_said_to_be_none() -> None:
    """A relative path or a typing slip is refused before anything is asked."""
    assert failure("../models/mine").reason is FailureReason.MODEL_NOT_FOUND


def test_only_what_runs_the_model_is_downloaded_and_its_commit_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configuration, safetensors and tokenizer come; pickles and code don't; a second run needs no download."""
    with hub(answer_as_hub) as (endpoint, asked):
        use(monkeypatch, endpoint)
        source = fetch(ModelRef(id="a/b"))
        assert source.directory is not None
        assert sorted(path.name for path in source.directory.iterdir()) == sorted(WANTED)
        assert source.commit == COMMIT
        assert not [path for path in asked if path.endswith((".bin", ".py", ".onnx"))]
        asked.clear()
        assert fetch(ModelRef(id="a/b")) == source
        assert not [path for path in asked if "/resolve/" in path]


@pytest.fixture
def _nobody() -> Iterator[None]:
    """Lay down what lets root write everywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.usefixtures("_nobody")
def test_a_cache_that_may_not_be_written_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the process may not write, the sentence names the folder and how to choose another."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "/cache-of-nobody")
    with hub(answer_as_hub) as (endpoint, _):
        use(monkeypatch, endpoint)
        found = failure()
    assert found.reason is FailureReason.CACHE_UNWRITABLE
    assert not found.reason.retryable
    assert not [
        word for word in ("/cache-of-nobody", "Permission denied", "HF_HOME", "volume") if word not in str(found)
    ]


def test_a_file_in_the_caches_place_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even root can make no folder there."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    with hub(answer_as_hub) as (endpoint, _):
        use(monkeypatch, endpoint)
        found = failure()
    assert found.reason is FailureReason.CACHE_UNWRITABLE, str(found)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), FailureReason.CACHE_UNWRITABLE),
        (OSError(errno.EROFS, "Read-only file system"), FailureReason.CACHE_UNWRITABLE),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), FailureReason.CACHE_UNWRITABLE),
        (RuntimeError("I/O error: No space left on device (os error 28)"), FailureReason.CACHE_UNWRITABLE),
        (RuntimeError("Connection refused (os error 111)"), FailureReason.FETCH_FAILED),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), FailureReason.FETCH_FAILED),
        (OSError("something"), FailureReason.FETCH_FAILED),
    ],
)
def test_the_disks_refusals_are_told_from_the_networks(error: Exception, reason: FailureReason) -> None:
    """A full or read-only disk is not worth another try, whichever of its downloaders the library used."""
    assert explained(error, ModelRef(id="a/b")).reason is reason
