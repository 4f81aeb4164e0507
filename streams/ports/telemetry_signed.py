"""Read signed telemetry.

Records with an invalid signature are dropped, and so are records that name another gateway than
their signer. Signatures are checked first, over whole batches. Only valid records are parsed
(`streams.ports.telemetry_wire`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streams.ports.telemetry_wire import read_reported
from topics.checks import InvalidValue
from topics.keys import gateway_name
from topics.macs import Verifier
from topics.signing import Refusal
from topics.telemetry_columns import TelemetryBatch
from topics.topic_table import TELEMETRY


@dataclass(frozen=True, slots=True)
class SignedTelemetry:
    """Result of `read_signed`. records: the valid records, in order.

    places: their positions in the batch; None: every record is valid. bad: errors of malformed
    records, by position. refused: reasons for unverified records, by position.
    """

    records: TelemetryBatch
    places: Sequence[int] | None
    bad: Mapping[int, InvalidValue]
    refused: Mapping[int, Refusal]


def read_signed(
    values: Sequence[bytes],
    headers: Sequence[Any],
    appended_ms: Sequence[int],
    verifier: Verifier,
) -> SignedTelemetry:
    """The records of a batch. values, headers, appended_ms: one item per record."""
    signers, refused = verifier.verify_telemetry(values, headers, appended_ms)
    places: Sequence[int] = range(len(values))
    if refused:
        places = [at for at in places if at not in refused]
        values = [values[at] for at in places]
    records, unread = read_reported(values)
    bad = {places[at]: error for at, error in unread.items()}
    if bad:
        places = [at for at in places if at not in bad]
    if verifier:
        if len(places) < len(headers):
            signers = [signers[at] for at in places]
        strange = _strangers(records, signers, verifier)
        if strange:
            refused |= {places[at]: why for at, why in strange.items()}
            records = records.select([at for at in range(len(places)) if at not in strange])
            places = [at for at in places if at not in refused]
    whole = len(places) == len(headers)
    return SignedTelemetry(records, None if whole else places, bad, refused)


def _strangers(
    records: TelemetryBatch, signers: Sequence[bytes], verifier: Verifier
) -> dict[int, Refusal]:
    """Refusals of records that name a gateway other than their signer, by position."""
    gateways = [name[1] for name in records.names]
    pairs = set(zip(signers, gateways, strict=True))
    if all(gateway_name(gateway).encode() == signer for signer, gateway in pairs):
        return {}
    found = {}
    for at, (signer, gateway) in enumerate(zip(signers, gateways, strict=True)):
        owner = gateway_name(gateway)
        signed_by = signer.decode(errors="replace")
        why = verifier.check_owner(TELEMETRY.name, signed_by, owner) if signer else None
        if why is not None:
            found[at] = why
    return found
