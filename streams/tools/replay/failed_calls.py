"""Rows of logs that are no served request of a model: failed calls, and requests for other paths.

The columns are those of gateways, proxies and tracing tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from streams.files.tables import Row
from streams.tools.replay.access_logs import is_model_request

_STATUS = ("status", "status_code", "response_code", "http_status", "response.status",
           "http.response.status_code", "response.status_code", "response_status")  # fmt: skip
"""Columns with the status of an HTTP answer. From 400 on, the request failed."""
_FAILED = ("error", "failed", "fail", "failure", "timeout", "cancelled", "canceled", "aborted", "0")
"""Other values of a status that mark a failed request. Envoy writes 0 if a client left."""
_SUCCESS = ("success", "succeeded", "is_success", "ok")
"""Columns that are false for a failed request."""
_ERROR = ("error", "error_code", "error_type", "error_message", "exception", "error.message",
          "error.type", "error.code")  # fmt: skip
"""Columns that are empty or false unless the request failed."""
_METHOD = ("method", "request_method", "http_method", "request.method", "http.request.method")
_PATH = ("path", "request_uri", "uri", "url", "request.path", "x_envoy_origin_path", "request.uri",
         "request_path", "url.path", "http.target")  # fmt: skip
_REQUEST = ("request", "request_line")
"""Columns with method and path: "POST /v1/completions HTTP/1.1"."""
_EMPTY = ("", "null", "none", "nil", "nan", "n/a", "na", "-", "\\n", "undefined")
_FALSE = ("false", "no", "0", "0.0")
_CODE = re.compile(r"[45]\d\d(?!\d)")


def empty(value: object) -> bool:
    """Whether a cell has no value. Databases and scripts write missing values as texts, too."""
    if isinstance(value, str):
        return value.strip().lower() in _EMPTY
    return value is None or value != value


def reason_to_skip(row: Row, filtered: bool) -> str:
    """Reason why `row` is no served request of a model; "" if it is one.

    filtered: the row is of an access log, in which only some requests are for a model.
    """
    if filtered and (asked := _method_and_path(row)) and not is_model_request(*asked):
        return "of other requests"
    status = _text(row, _STATUS)
    errors = (str(row[name]).lower() for name in _ERROR if not empty(row.get(name)))
    if (
        status in _FAILED
        or _CODE.match(status)
        or _text(row, _SUCCESS) in _FALSE
        or any(error not in _FALSE for error in errors)
    ):
        return "of failed calls"
    return ""


def _text(row: Row, names: Iterable[str]) -> str:
    """The first of the columns `names` that has a value, in lower case; "" without any."""
    return next((str(row[n]).strip().lower() for n in names if not empty(row.get(n))), "")


def _method_and_path(row: Row) -> tuple[str, str] | None:
    """Method and path of an HTTP request; None if the row does not state both."""
    parts = [*_text(row, _REQUEST).split(" "), "", ""]
    method = _text(row, _METHOD) or (parts[0] if parts[1] else "")
    path = _text(row, _PATH) or parts[1]
    return (method, path) if method and path else None
