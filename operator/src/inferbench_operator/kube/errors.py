"""What can go wrong at the API server, in our own words, so that no client's exception leaves this folder."""

from __future__ import annotations


class KubernetesError(Exception):
    """A request failed for a reason that may pass; retry with a back-off."""

    def __init__(self, method: str, path: str, code: int, detail: str) -> None:
        """Build the sentence from the facts; `code` is 0 where the server was not reached."""
        answer = f"answered {code}" if code else "was not reached"
        super().__init__(f"{method} {path}: the API server {answer}: {detail[:300]}")
        self.code = code
        self.detail = detail


class NotFoundError(KubernetesError):
    """The object, or its namespace, is not there; retrying does not bring it back."""


class AlreadyExistsError(KubernetesError):
    """An object of that name exists already; look whose it is."""


class ConflictError(KubernetesError):
    """The object has changed since it was read; look again and retry at once."""


class ForbiddenError(KubernetesError):
    """The operator may not do that now: a right, a quota or a policy stands in the way; retry with a back-off."""


class RefusedError(KubernetesError):
    """The API server refuses the object as it is written; retry only after it was changed."""


class NoClusterError(Exception):
    """There is no cluster to work for; do not retry."""

    def __init__(self, cause: Exception) -> None:
        """Say what to give the operator, and what its client says about what it has."""
        detail = " ".join(str(cause).split())
        super().__init__(
            "No cluster: run it in a pod with a service account, or name a kubeconfig that has a current context in "
            f"KUBECONFIG: {type(cause).__name__}: {detail}"
        )
