"""Errors of a Kubernetes API server; each class needs another reaction of the caller."""

from __future__ import annotations

import re

_NO_RIGHT = re.compile(r"\bUser \".*?\" cannot \w+ resource ")


class KubeError(Exception):
    """A request that the server refused. code: HTTP status, 0 = no answer. reason: Kubernetes'
    reason ("AlreadyExists", "Forbidden", ...)."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message or reason or f"HTTP {code}")
        self.code = code
        self.reason = reason
        self.message = message


class Temporary(KubeError):
    """The same request may succeed later: no answer, a server fault, or throttling.

    retry_after_s: the pause that the server asks for, 0 = none.
    """

    def __init__(self, code: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(code, reason, message)
        self.retry_after_s = retry_after_s

    @property
    def of_webhook(self) -> bool:
        """Whether an admission webhook gives no answer."""
        return "failed calling webhook" in self.message


class Unauthorized(KubeError):
    """401: the token is unknown or has expired."""


class Forbidden(KubeError):
    """403: a right is missing, a quota is exceeded, or admission refuses the object. The server
    tells them apart by the message alone."""

    @property
    def over_quota(self) -> bool:
        """Whether a resource quota refused the object."""
        return "exceeded quota" in self.message

    @property
    def no_right(self) -> bool:
        """Whether the account lacks a right."""
        return _NO_RIGHT.search(self.message) is not None


class NotFound(KubeError):
    """404: no such object, or no such kind on this server."""


class Conflict(KubeError):
    """409: the object exists already (`exists`), or it changed since it was read."""

    @property
    def exists(self) -> bool:
        """Whether an object with this name exists already."""
        return self.reason == "AlreadyExists"


class Expired(KubeError):
    """410: the resource version is too old; list again."""


_BY_CODE: dict[int, type[KubeError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
}


def kube_error(code: int, reason: str, message: str, retry_after_s: float = 0.0) -> KubeError:
    """The exception for an answer of the server."""
    if code in (0, 408, 429) or code >= 500:
        return Temporary(code, reason, message, retry_after_s)
    return _BY_CODE.get(code, KubeError)(code, reason, message)
