"""`shoal log verify` names the first place where a log was damaged or changed."""

from __future__ import annotations

import random
import shutil
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from streams.cli.main import main
from streams.decision_log import log_lines
from streams.decision_log.log_lines import Damage, read_lines
from streams.decision_log.log_reader import Gap, read_spans, segments
from streams.decision_log.log_verify import verify
from tests.unit.decision_log.recorded_worlds import some_ticks, write
from topics.keys import Keys
from topics.record_chain import chained

KEYS, OTHER = Keys(cluster="k" * 40), Keys(cluster="o" * 40)
NONE = Keys()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 ticks in three segments of 80 s, with a start every 30 s."""
    folder = tmp_path_factory.mktemp("log")
    write(folder, some_ticks(), keys=KEYS, segment_s=80, start_s=30)
    return folder


@pytest.fixture
def log(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "log"))


def paths(log: Path) -> list[Path]:
    return [segment.path for segment in segments(log)]


def members(path: Path) -> list[bytes]:
    """The unpacked members of a segment."""
    found, data = [], path.read_bytes()
    while data:
        unpacker = zlib.decompressobj(31)
        found.append(unpacker.decompress(data))
        data = unpacker.unused_data
    return found


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]], member: int = 1) -> None:
    """Change the lines of one member."""
    parts = members(path)
    parts[member] = b"".join(change(parts[member].splitlines(keepends=True)))
    path.write_bytes(b"".join(zlib.compress(part, wbits=31) for part in parts))


def number(line: bytes) -> int:
    return int(orjson.loads(line)["head"]["number"])


def first_fault(log: Path, keys: Keys = NONE) -> str:
    (report,) = verify(log, keys)
    return report.faults[0].text if report.faults else ""


def test_an_unchanged_log_is_intact_and_signed(log: Path) -> None:
    (report,) = verify(log, KEYS)
    assert report.faults == report.notes == [] and report.wrong == report.unsigned == 0
    assert report.signed == 11 and report.segments == 3
    assert report.records == 200 + report.signed == report.last + 1


def test_a_log_can_be_read_without_shoal(log: Path) -> None:
    """As documented: gzip members of JSON Lines."""
    lines = b"".join(members(paths(log)[0])).splitlines()
    assert {"hash", "head", "body"} == orjson.loads(lines[0]).keys()


def altered(line: bytes) -> bytes:
    changed = line.replace(b'"at_ms":', b'"at_ms":1', 1)
    assert changed != line
    return changed


def rehashed(lines: list[bytes]) -> list[bytes]:
    """The lines with hashes that fit each other again."""
    previous = orjson.loads(lines[0])["head"]["previous"]
    made = []
    for line in lines:
        previous = chained(previous, line[75:-1])
        made.append(b'{"hash":"%b",%b' % (previous.encode(), line[75:]))
    return made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: [*x[:5], altered(x[5]), *x[6:]], "record {5} was changed"),
        (lambda x: [altered(x[0]), *x[1:]], "record {0} was changed"),
        (lambda x: x[:5] + x[6:], "record {5} is missing before record {6}"),
        (lambda x: x[:5] + x[9:], "records {5} to {8} are missing before record {9}"),
        (lambda x: [*x[:5], x[6], x[5], *x[7:]], "record {5} is missing before record {6}"),
        (lambda x: [*x[:6], x[5], *x[6:]], "record {5} follows record {5}: inserted"),
        (lambda x: rehashed([*x[:5], altered(x[5]), *x[6:]]), "which was changed"),
        (lambda x: x[:-3], "are missing before record"),
    ],
)
def test_the_first_changed_place_is_named(
    change: Callable[[list[bytes]], list[bytes]], said: str, log: Path
) -> None:
    path = paths(log)[1]
    numbers = [number(line) for line in members(path)[1].splitlines()]
    edit(path, change)
    fault = first_fault(log)
    assert said.format(*numbers) in fault
    (report,) = verify(log, NONE)
    assert report.faults[0].path == path


def test_a_removed_segment_is_named(log: Path) -> None:
    first, second, _ = paths(log)
    second.unlink()
    assert "are missing before record" in first_fault(log)
    shutil.copytree(log, log.parent / "older")
    first.unlink()
    (report,) = verify(log, KEYS)
    assert report.faults == [] and "older segments were removed" in report.notes[0].text


def test_a_wholly_rewritten_chain_is_detected_by_its_signatures(log: Path) -> None:
    """An attacker can write all hashes again, and has no key for the heads."""
    parts = [
        line for path in paths(log) for part in members(path) for line in part.splitlines(True)
    ]
    parts[7] = altered(parts[7])
    forged, previous = [], "0" * 64
    for line in parts:
        value = orjson.loads(line)
        if value["head"].get("previous"):
            line = line.replace(value["head"]["previous"].encode(), previous.encode())
        previous = chained(previous, line[75:-1])
        forged.append((value["head"]["kind"], b'{"hash":"%b",%b' % (previous.encode(), line[75:])))
    for path in paths(log)[1:]:
        path.unlink()
    joined, member = b"", b""
    for kind, line in forged:
        if kind == "start" and member:
            joined, member = joined + zlib.compress(member, wbits=31), b""
        member += line
    paths(log)[0].write_bytes(joined + zlib.compress(member, wbits=31))
    assert first_fault(log, NONE) == ""
    assert "signature of record" in first_fault(log, KEYS)


def test_signatures_of_another_key_are_wrong_and_a_rotated_key_is_accepted(log: Path) -> None:
    (report,) = verify(log, OTHER)
    assert report.wrong == 11 and "another key" in report.faults[0].text
    (report,) = verify(log, Keys(cluster=f"{OTHER.cluster}\n{KEYS.cluster}"))
    assert report.faults == [] and report.signed == 11


def test_a_removed_end_is_noticed_with_a_noted_head(log: Path) -> None:
    (whole,) = verify(log, KEYS)
    noted = whole.last, whole.hash
    assert verify(log, KEYS, noted)[0].faults == []
    path = paths(log)[-1]
    path.write_bytes(b"".join(zlib.compress(part, wbits=31) for part in members(path)[:-1]))
    assert verify(log, KEYS)[0].faults == []
    (report,) = verify(log, KEYS, noted)
    assert "its end was removed" in report.faults[0].text
    assert "no record 3 has the noted hash" in verify(log, KEYS, (3, "a" * 64))[0].faults[0].text


def test_two_controllers_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Both continue the same chain."""
    ticks = some_ticks()
    write(tmp_path / "a", ticks[:20])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    write(tmp_path / "a", ticks[20:40])
    write(tmp_path / "b", ticks[25:40])
    for path in paths(tmp_path / "b")[1:]:
        shutil.copy(path, tmp_path / "a")
    assert "second controller of the same name" in first_fault(tmp_path / "a")


def test_each_flipped_bit_loses_at_most_one_span(log: Path) -> None:
    """The other spans are read, and the gap is named by both the reader and `verify`."""
    draw = random.Random(5)
    ticks = {done.now_ms: done.observation for done in some_ticks()}
    path = paths(log)[1]
    data = path.read_bytes()
    for _ in range(6):
        place = draw.randrange(len(data))
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        gaps: list[Gap] = []
        found = {
            tick.now_ms: tick.observation
            for span in read_spans(segments(log), gaps)
            for tick in span.ticks
        }
        assert found.items() <= ticks.items()
        assert len(found) >= len(ticks) - 32
        if len(found) < len(ticks):
            (gap,) = gaps
            assert gap.path == path and gap.records is not None
            assert len(ticks) - len(found) <= gap.records <= 34
            assert verify(log, NONE)[0].faults


def test_a_torn_page_loses_its_span_only(log: Path) -> None:
    path = paths(log)[1]
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(4096) + data[8192:])
    gaps: list[Gap] = []
    spans = read_spans(segments(log), gaps)
    assert sum(1 for span in spans for _ in span.ticks) >= 200 - 62 and gaps
    assert "cannot be read" in first_fault(log)


def test_a_small_file_that_unpacks_to_much_is_refused_in_little_memory(tmp_path: Path) -> None:
    bomb = zlib.compressobj(9, wbits=31)
    data = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(64)) + bomb.flush()
    (tmp_path / "1-x.jsonl.gz").write_bytes(data)
    assert len(data) < 100_000
    tracemalloc.start()
    found = list(read_lines(tmp_path / "1-x.jsonl.gz", most_bytes=2 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [Damage(0, "a record of more than 2 MiB is refused")]
    assert peak < 12 << 20


def test_a_record_that_no_reader_would_accept_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "MAX_LINE_BYTES", 500)
    log = write(tmp_path, some_ticks()[:3])
    assert "is not allowed; allowed" in log.status().fault and list(tmp_path.iterdir()) == []


def test_the_command_says_intact_or_names_the_place(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["log", "verify", str(log)]) == 0
    said = capsys.readouterr().out
    assert "ctl-1: intact: 211 records in 3 segments" in said
    assert "11 of 11 heads signed; not checked, no SHOAL_CLUSTER_KEY" in said
    head = next(line.split()[1] for line in said.splitlines() if "head:" in line)
    monkeypatch.setenv("SHOAL_CLUSTER_KEY", KEYS.cluster)
    assert main(["log", "verify", str(log), "--head", head]) == 0
    assert "signed with this cluster's key" in capsys.readouterr().out
    monkeypatch.setenv("SHOAL_CLUSTER_KEY", OTHER.cluster)
    assert main(["log", "verify", str(log)]) == 1
    capsys.readouterr()
    edit(paths(log)[0], lambda lines: lines[:3] + lines[4:])
    monkeypatch.delenv("SHOAL_CLUSTER_KEY")
    assert main(["log", "verify", str(log)]) == 1
    said = capsys.readouterr().out
    assert "NOT INTACT" in said and "is missing before" in said
    assert main(["log", "verify", str(log), "--head", "3"]) == 2
    assert "allowed: NUMBER:HASH" in capsys.readouterr().err
    assert main(["log", "verify", str(log / "none")]) == 2


def test_an_unsigned_log_does_not_pass_with_a_key_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attacker who changes a log could remove its signatures."""
    write(tmp_path, some_ticks()[:5])
    assert main(["log", "verify", str(tmp_path)]) == 0
    monkeypatch.setenv("SHOAL_CLUSTER_KEY", KEYS.cluster)
    assert main(["log", "verify", str(tmp_path)]) == 1
    assert "not signed" in capsys.readouterr().out
