"""`shoal notify`: messages to people about broken promises and waiting proposals.

Reads the status of a controller again and again. Needs no Prometheus.
"""

from __future__ import annotations

import argparse
import smtplib
import sys
import time
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from email.message import EmailMessage
from http.client import HTTPException
from pathlib import Path
from typing import Any

import orjson
from tenacity import Retrying, stop_after_attempt, wait_exponential

from streams.cli.controller_client import add_url, status
from streams.cli.notices import Notice, Notices
from streams.files import units
from streams.files.user_errors import UserError, first_line, without_login

_TIMEOUT_S = 10.0
_ATTEMPTS = 5
_KINDS = ("webhook", "slack", "mail")


def add_parser(subparsers: Any) -> None:
    """Add `notify` to the command line."""
    parser = subparsers.add_parser(
        "notify",
        help="send a message about each broken promise and waiting proposal",
        description="Follows the status of a controller and sends a message if a model breaks its "
        "promise or is at risk, if it is well again, if a proposal waits for approval, and if the "
        "controller does not answer.",
    )
    add_url(parser)
    parser.add_argument(
        "--to", action="append", required=True, metavar="KIND=ADDRESS",
        help="webhook=URL, slack=URL or mail=NAME@HOST; @FILE instead of an address reads it from "
        "a file; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--after", default="30s", metavar="TIME", help="time that a state must last (%(default)s)"
    )
    parser.add_argument(
        "--every", default="5s", metavar="TIME", help="time between two looks (%(default)s)"
    )
    parser.add_argument(
        "--smtp", default="127.0.0.1:25", metavar="HOST:PORT", help="mail server (%(default)s)"
    )
    parser.add_argument(
        "--mail-from", default="shoal@localhost", metavar="NAME@HOST", help="sender (%(default)s)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Follow the controller until Ctrl-C. UserError: bad input."""
    every_s = units.named_duration_s("--every", args.every)
    notices = Notices(units.named_duration_s("--after", args.after))
    receivers = [_receiver(one) for one in args.to]
    smtp = _host_and_port(args.smtp)
    while True:
        try:
            found = list(notices.of_status(status(args.url), time.monotonic()))
        except UserError as error:
            found = list(notices.of_silence(str(error), time.monotonic()))
        for notice in found:
            print(line(notice), flush=True)
        for kind, address in receivers if found else ():
            _deliver(kind, address, found, args.url, smtp, args.mail_from)
        time.sleep(every_s)


def line(notice: Notice) -> str:
    """The notice as one line."""
    state = notice.level.replace("_", " ")
    return f"{notice.model or 'controller'}: {state}: {notice.text}"


def body(kind: str, notices: Sequence[Notice], url: str) -> dict[str, Any]:
    """The JSON object for a webhook: all fields and the line of each notice, and the controller's
    address. Slack reads only `text`."""
    if kind == "slack":
        return {"text": "\n".join(map(line, notices))}
    return {"url": url, "notices": [{**asdict(one), "line": line(one)} for one in notices]}


def _receiver(text: str) -> tuple[str, str]:
    """Kind and address of a receiver. UserError: neither a URL nor a mail address."""
    kind, _, address = text.partition("=")
    if kind not in _KINDS or not address:
        raise UserError(f"--to {kind}: allowed is one of {', '.join(_KINDS)}, then =ADDRESS")
    if address.startswith("@"):
        try:
            address = Path(address[1:]).read_text().strip()
        except (OSError, ValueError) as error:
            raise UserError(f"--to {text}: {first_line(error)}") from None
    is_right = "@" in address if kind == "mail" else address.startswith(("http://", "https://"))
    if not is_right or any(one.isspace() for one in address):
        allowed = "NAME@HOST" if kind == "mail" else "http://... or https://..."
        raise UserError(f"--to {kind}: the address is not {allowed}")
    return kind, address


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UserError(f"--smtp {text}: not HOST:PORT")
    return host, int(port)


def _deliver(
    kind: str,
    address: str,
    notices: Sequence[Notice],
    url: str,
    smtp: tuple[str, int],
    sender: str,
) -> None:
    """Send the notices in one message; after some failed attempts, report that and drop it."""
    attempts: Iterable[Any] = Retrying(
        stop=stop_after_attempt(_ATTEMPTS), wait=wait_exponential(0.5, max=8.0), reraise=True
    )
    try:
        for attempt in attempts:
            with attempt:
                if kind == "mail":
                    _mail(address, notices, url, smtp, sender)
                else:
                    _post(address, orjson.dumps(body(kind, notices, without_login(url))))
    except (OSError, ValueError, HTTPException, smtplib.SMTPException) as error:
        # The address of a webhook is a secret.
        sys.stderr.write(f"shoal: a message was not delivered by {kind}: {first_line(error)}\n")


def _post(address: str, data: bytes) -> None:
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310  checked before
        return


def _mail(
    address: str, notices: Sequence[Notice], url: str, smtp: tuple[str, int], sender: str
) -> None:
    message = EmailMessage()
    message["From"], message["To"] = sender, address
    first, *others = map(line, notices)
    more = f" (and {len(others)} more)" if others else ""
    message["Subject"] = f"Shoal: {first[:150]}{more}"
    message.set_content("\n".join([first, *others, "", without_login(url), ""]))
    with smtplib.SMTP(*smtp, timeout=_TIMEOUT_S) as server:
        server.send_message(message)
