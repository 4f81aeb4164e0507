"""Requests in access logs of nginx, Envoy and AWS load balancers, as rows of a trace without token
counts.

nginx and the balancers write the time at the end of a request, Envoy the time of its arrival.
Access logs have no tokens, so the user declares them: `--columns input=900,output=150`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from streams.files.user_errors import UserError

_NGINX = re.compile(
    r"\S+ \S+ \S+ \[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    r'"([A-Z]+) (\S+)[^"]*" (\d{3}) '
)
_ENVOY = re.compile(r'\[(\d{4}-\d\d-\d\dT[\d:.]+Z?)\] "([A-Z]+) (\S+)[^"]*" (\d{1,3}) ')
_BALANCER = re.compile(
    r"(?:https?|h2|grpcs) (\d{4}-\d\d-\d\dT[\d:.]+Z) (?:\S+ ){6}(\d{3}|-) \S+ \d+ \d+ "
    r'"([A-Z]+) (\S+)'
)
_NGINX_TIME = "%d/%b/%Y:%H:%M:%S %z"
_MODEL_PATH = re.compile(
    r"/(?:completions|responses|messages|embeddings|rerank|score|pooling|classify|generate"
    r"|generate_stream|invocations|infer)/?(?:\?.*)?\Z"
)
_SOME = 20

Numbered = tuple[str, dict[str, object]]


def is_access_log(text: str) -> bool:
    """Whether one of the first lines of `text` is of an access log."""
    lines = text.split("\n", _SOME)[:_SOME]
    return any(form.match(line) for line in lines for form in (_NGINX, _ENVOY, _BALANCER))


def is_model_request(method: str, path: str) -> bool:
    """Whether a request with this method and path asks a model for an answer."""
    return method.upper() == "POST" and _MODEL_PATH.search(path) is not None


def access_rows(path: Path, text: str) -> Iterator[Numbered]:
    """Each line of an access log as a row. UserError: a time is invalid."""
    for number, line in enumerate(text.split("\n"), 1):
        place = f"{path}:{number}"
        if match := _NGINX.match(line):
            try:
                time = datetime.strptime(match[1], _NGINX_TIME).isoformat()
            except ValueError:
                raise UserError(f"{place}: {match[1]!r} is no time") from None
        elif match := _ENVOY.match(line):
            time = match[1]
        elif match := _BALANCER.match(line):
            row = {"time": match[1], "method": match[3], "path": match[4]}
            # A balancer writes "-" if no server answered.
            yield place, {**row, "status": "error" if match[2] == "-" else match[2]}
            continue
        else:
            continue
        yield place, {"time": time, "method": match[2], "path": match[3], "status": match[4]}
