"""Command-line options for the operator endpoints of a controller.

`shoal controller` takes these options and passes them to `python -m streams.controller`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from streams.files.user_errors import UserError
from streams.health.listen_address import parse_listen
from streams.health.operators import NO_OPERATORS, OPERATORS_FILE, Operators, operators_from
from streams.health.tokens import NO_TOKEN, OPERATOR_TOKEN, READ_TOKEN, BearerToken, read_token
from topics.checks import InvalidValue
from topics.http_origin import parse_host_names
from topics.storage.private_files import private_folder

MOST_RECORD_MIB = 1024
MERGED, TELEMETRY = "merged", "telemetry"
HTTP = "127.0.0.1:8702"


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """Options of the endpoints and of the decision log. http: listen address for scrapes, status
    and alerts; "" for none. hosts: accepted host names, in addition to addresses. record: folder
    and maximum size in bytes of the decision log; None for no log.

    alert_token: token for alerts; without one, these are refused. operators: identify who gives
    commands over HTTP; without any, these are refused. read_token: token for reads; without one,
    reads need no authentication.
    """

    http: str = ""
    hosts: frozenset[str] = frozenset()
    alert_token: BearerToken = NO_TOKEN
    read_token: BearerToken = NO_TOKEN
    operators: Operators = NO_OPERATORS
    record: Path | None = None
    record_bytes: int = MOST_RECORD_MIB << 20


def add_demand_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names who merges the telemetry."""
    parser.add_argument(
        "--demand",
        default=MERGED,
        choices=[MERGED, TELEMETRY],
        help="on a real Kafka, read what `shoal windows` workers merged, or merge the telemetry of "
        f"every gateway in the controller ({MERGED})",
    )


def add_operator_options(parser: argparse.ArgumentParser, record: str = "", http: str = "") -> None:
    """Add the options to `parser`. record, http: default folder of the decision log and default
    listen address, "" for none."""
    parser.add_argument(
        "--http",
        default=http,
        metavar="HOST:PORT",
        help="where to listen for the console, /metrics, /livez, /healthz, /readyz, /v1/status "
        f"and /alerts; '' for nowhere (default {http or 'nowhere'})",
    )
    parser.add_argument(
        "--allowed-hosts",
        default="",
        metavar="NAMES",
        help="host names, by commas, that --http answers to besides addresses and localhost; a "
        f"token for reads comes from ${READ_TOKEN} or ${READ_TOKEN}_FILE, operators from "
        f"${OPERATORS_FILE}, a shared token for commands from ${OPERATOR_TOKEN} or "
        f"${OPERATOR_TOKEN}_FILE",
    )
    parser.add_argument(
        "--alert-token-file",
        default="",
        metavar="FILE",
        help="bearer token that /alerts asks for; without one every alert is refused",
    )
    parser.add_argument(
        "--record",
        default=record,
        metavar="FOLDER",
        help="keep observations and decisions here for `shoal replay`; '' for none "
        f"(default {record or 'none'})",
    )
    parser.add_argument(
        "--record-mib",
        type=int,
        default=MOST_RECORD_MIB,
        metavar="MIB",
        help="largest size of that folder; the oldest are removed (default %(default)s)",
    )


def parse_operator_options(given: argparse.Namespace) -> OperatorOptions:
    """Convert parsed arguments to `OperatorOptions`. Creates the folder of the decision log.
    UserError: an option has an invalid value."""
    if not 1 <= given.record_mib <= 1 << 20:
        raise UserError(f"--record-mib {given.record_mib}: allowed: 1 to {1 << 20}")
    if given.http:
        parse_listen(given.http)
    token = Path(given.alert_token_file) if given.alert_token_file else None
    record = Path(given.record) if given.record else None
    try:
        if token is not None:
            token.read_bytes()
    except OSError as error:
        raise UserError(f"--alert-token-file {token}: cannot be read ({error.strerror})") from None
    try:
        if record is not None:
            private_folder(record)
            tempfile.TemporaryFile(dir=record).close()
    except OSError as error:
        raise UserError(f"--record {record}: cannot be written to ({error.strerror}); name another "
                        "folder, or '' for none") from None  # fmt: skip
    try:
        hosts = parse_host_names("--allowed-hosts", given.allowed_hosts)
    except InvalidValue as error:
        raise UserError(str(error)) from None
    return OperatorOptions(
        http=given.http,
        hosts=hosts,
        alert_token=BearerToken(token),
        read_token=read_token(os.environ),
        operators=operators_from(os.environ, read_token(os.environ, OPERATOR_TOKEN)),
        record=record,
        record_bytes=given.record_mib << 20,
    )


def operator_options_argv(given: argparse.Namespace) -> tuple[str, ...]:
    """The options as arguments of `python -m streams.controller`."""
    parse_operator_options(given)
    return (
        "--http", given.http, "--allowed-hosts", given.allowed_hosts,
        "--alert-token-file", given.alert_token_file,
        "--record", given.record, "--record-mib", str(given.record_mib),
    )  # fmt: skip
