"""`shoal keys`: create the cluster's key, derive the keys of nodes, gateways and operators, rotate.

A key is neither an argument nor printed. Keys are read from files and written to files.
"""

from __future__ import annotations

import argparse
import os
import secrets
from pathlib import Path
from typing import Any

from streams.cli.publish import Broker, add_broker
from streams.files.keyfiles import write_key
from streams.files.user_errors import UserError
from topics.checks import InvalidValue, name
from topics.keys import CLUSTER_KEY, Keys, Principal, check_key, credential
from topics.macs import Verifier
from topics.topic_table import CONTROLS, SERVICES

_STEPS = {
    "add": "the new key is accepted, the old one still signs",
    "switch": "the new key signs, the old one is still accepted",
    "drop": "the old key is not accepted any more",
}
_MOST = 1_000_000  # records per partition; an operator's topic has fewer


def add_parser(subparsers: Any) -> None:
    """Add `keys` to the command line."""
    parser = subparsers.add_parser(
        "keys",
        help="make, derive and rotate the keys that records are signed with",
        description="Keys go from file to file (mode 0600) and are never shown.",
    )
    commands = parser.add_subparsers(dest="keys_command", metavar="COMMAND", required=True)
    new = commands.add_parser("new", help="make the cluster's key")
    new.add_argument("--out", required=True, type=Path, metavar="FILE", help="must not exist yet")
    new.set_defaults(run=run_new)
    derive = commands.add_parser("derive", help="derive the key of a node, gateway or operator")
    whom = derive.add_mutually_exclusive_group(required=True)
    whom.add_argument("--node", metavar="NAME", help="REGION.POOL.MARKET.NUMBER")
    whom.add_argument("--gateway", metavar="NAME", help="its --id; workers have the same key")
    whom.add_argument("--operator", action="store_true", help="for apply, pause, feed and others")
    _add_cluster_file(derive)
    derive.add_argument("--out", required=True, type=Path, metavar="FILE", help="is overwritten")
    derive.set_defaults(run=run_derive)
    rotate = commands.add_parser("rotate", help="change the cluster's key without a stop")
    step = rotate.add_mutually_exclusive_group(required=True)
    for number, (option, meaning) in enumerate(_STEPS.items(), 1):
        step.add_argument(
            f"--{option}", dest="step", action="store_const", const=option,
            help=f"step {number}: {meaning}",
        )  # fmt: skip
    _add_cluster_file(rotate)
    rotate.set_defaults(run=run_rotate)
    sign = commands.add_parser(
        "sign",
        help="sign again what operators declared: services and controls",
        description="Before `rotate --drop`, and once after keys were set for the first time "
        "(--unsigned). Names everything that it signs.",
    )
    sign.add_argument(
        "--unsigned",
        action="store_true",
        help="also sign records that have no signature yet; check them first",
    )
    add_broker(sign)
    sign.set_defaults(run=run_sign)


def _add_cluster_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster-key-file",
        type=Path,
        metavar="FILE",
        help=f"file of `shoal keys new` (default: {CLUSTER_KEY}_FILE)",
    )


def run_new(args: argparse.Namespace) -> int:
    """Create the cluster's key. UserError: the file already exists or cannot be written."""
    if args.out.exists():
        raise UserError(f"--out {args.out}: is there already; `shoal keys rotate` changes a key")
    _write(args.out, secrets.token_hex(32))
    print(
        f"{args.out}: a new cluster key; set {CLUSTER_KEY}_FILE for controllers and window workers"
    )
    return 0


def run_derive(args: argparse.Namespace) -> int:
    """Derive one key. UserError: no cluster key, or an invalid name."""
    path, cluster = _cluster(args)
    if args.out.resolve() == path.resolve():
        raise UserError(f"--out {args.out}: is the cluster's key")
    principal, named = Principal.OPERATOR, ""
    if not args.operator:
        principal = Principal.NODE if args.node is not None else Principal.GATEWAY
        named = args.node if args.node is not None else args.gateway
        name(f"--{principal}", named)
    _write(args.out, credential(cluster, principal, named))
    print(f"{args.out}: the key of {principal} {named}".rstrip() + _use(principal))
    return 0


def run_rotate(args: argparse.Namespace) -> int:
    """Take one step of a rotation. UserError: this step is not the next one of the rotation."""
    path, cluster = _cluster(args)
    lines = cluster.split("\n")
    if (args.step == "add") != (len(lines) == 1):
        held = "one key" if len(lines) == 1 else "two keys"
        after = "--add" if len(lines) == 1 else "--switch, then --drop"
        raise UserError(f"--{args.step}: {path} has {held}; allowed: {after}")
    if args.step == "add":
        lines = [lines[0], secrets.token_hex(32)]
    else:
        lines = lines[::-1] if args.step == "switch" else lines[:1]
    _write(path, "\n".join(lines))
    print(
        f"{path}: {_STEPS[args.step]}; derive all keys again, give them out and restart each "
        "process, in any order, before the next step"
    )
    return 0


def run_sign(args: argparse.Namespace) -> int:
    """For each key in the operator's topics, write its last value again, now with a signature."""
    broker = Broker.of(args)
    if not broker.keys.principal_keys(Principal.OPERATOR):
        raise UserError("no operator's key: set SHOAL_OPERATOR_KEY_FILE")
    signed = 0
    for topic in (SERVICES, CONTROLS):
        verifier = Verifier(broker.keys, rereads=True)
        last: dict[bytes, bytes | None] = {}
        for one in broker.messages(topic, _MOST):
            refused = verifier.refusal(topic.name, one.key, one.value, one.headers, one.timestamp)
            if refused is None or (args.unsigned and not one.headers):
                last[one.key or b""] = one.value
        kept = {key: value for key, value in last.items() if value is not None}
        broker.write((topic, key, value) for key, value in kept.items())
        for key in sorted(kept):
            print(f"{topic.name} {key.decode(errors='replace')!r}: signed")
        signed += len(kept)
    print(f"{signed} records signed")
    return 0


def _use(principal: Principal) -> str:
    return f"; its process reads it from SHOAL_{principal.name}_KEY_FILE"


def _cluster(args: argparse.Namespace) -> tuple[Path, str]:
    given = args.cluster_key_file or os.environ.get(f"{CLUSTER_KEY}_FILE")
    if not given:
        raise UserError(f"--cluster-key-file is not given, and {CLUSTER_KEY}_FILE is not set")
    path = Path(given)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--cluster-key-file {path}: cannot be read: {error}") from None
    try:
        return path, Keys(check_key(str(path), text)).cluster
    except InvalidValue as error:
        raise UserError(str(error)) from None


def _write(path: Path, text: str) -> None:
    try:
        write_key(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
