"""The content of a trace identifies its format. Errors name file and line."""

from __future__ import annotations

import gzip
from importlib import resources
from pathlib import Path

import pytest

from streams.files.user_errors import UserError
from streams.tools.replay.traces import load_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
)
AIBRIX = "timestamp_ms,input_tokens,output_tokens\n6011,178,8\n6917,258,40\n"
MOONCAKE = (
    '{"timestamp": 0, "input_length": 40160, "output_length": 6, "hash_ids": [0, 1]}\n'
    '{"timestamp": 40, "input_length": 7, "output_length": 3}\n'
)
PLAIN = "time,model,input_tokens,output_tokens\n0.5,chat,12,3\n2,mini,7,1\n"


def write(folder: Path, text: str | bytes, name: str = "trace.dat") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "form", "arrivals", "tokens"),
    [
        (AZURE, "azure", [0.0, 4314.579], [(374, 44), (396, 109)]),
        (AIBRIX, "aibrix", [6011.0, 6917.0], [(178, 8), (258, 40)]),
        (MOONCAKE, "mooncake", [0.0, 40.0], [(40160, 6), (7, 3)]),
        (PLAIN, "plain", [500.0, 2000.0], [(12, 3), (7, 1)]),
    ],
)
@pytest.mark.parametrize("dress", ["plain", "gz", "crlf", "bom", "blank"])
def test_the_content_identifies_the_format(
    tmp_path: Path,
    text: str,
    form: str,
    arrivals: list[float],
    tokens: list[tuple[int, int]],
    dress: str,
) -> None:
    """The file name does not matter. Line ends, a byte order mark and blank lines do no harm."""
    data = text.encode()
    dressed = {
        "plain": data,
        "gz": gzip.compress(data, mtime=0),
        "crlf": data.replace(b"\n", b"\r\n"),
        "bom": b"\xef\xbb\xbf" + data,
        "blank": b"\n" + data + b"\n\n",
    }[dress]
    trace = load_trace(write(tmp_path, dressed))
    assert trace.form == form
    assert list(trace.arrivals_ms) == pytest.approx(arrivals, abs=1e-3)
    assert list(zip(trace.input_tokens, trace.output_tokens, strict=True)) == tokens
    assert trace.duration_s == pytest.approx(arrivals[-1] / 1000)


def test_rows_out_of_order_are_sorted(tmp_path: Path) -> None:
    path = write(tmp_path, "timestamp_ms,input_tokens,output_tokens\n9,1,1\n3,2,2\n9,3,3\n")
    assert list(load_trace(path).input_tokens) == [2, 1, 3]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"a,b,c\n1,2,3\n", ":1: 'a,b,c' begins no trace"),
        (
            b"time,input_tokens\n1,2\n",
            ":1: 'time,input_tokens': the column output_tokens is missing",
        ),
        (b"time,input_tokens,output_tokens,time\n1,2,3,4\n", "the column time appears twice"),
        (b"\xff\xfe\x00\x01", "not text"),
        (b"\x1f\x8b\x08\x00broken", "damaged gzip"),
        (gzip.compress(AZURE.encode(), mtime=0)[:-12], "damaged gzip"),
        (AIBRIX.splitlines()[0].encode(), "no requests after the header"),
        (AIBRIX.encode() + b"1,2\n", ":4: 2 columns, expected 3"),
        (AIBRIX.encode() + b"1,-2,3\n", ":4: input_tokens: '-2'"),
        (AIBRIX.encode() + b"1,99999999,3\n", ":4: input_tokens"),
        (AIBRIX.encode() + "1,٣,3\n".encode(), ":4: input_tokens"),
        (AZURE.encode() + b"yesterday,2,3\n", ":4: timestamp: 'yesterday'"),
        (b"{broken\n", ":1: not JSON"),
        (
            b'{"timestamp": 1, "input_length": 2}\n',
            "the column output_tokens is missing; name it with --columns output=",
        ),
        (MOONCAKE.encode() + b"[1]\n", ":3: expected an object"),
        (MOONCAKE.encode() + b'{"timestamp":true,"input_length":1,"output_length":1}\n', ":3: "),
        (MOONCAKE.encode() + b'{"timestamp":1,"input_length":1.5,"output_length":1}\n', ":3: "),
    ],
)
def test_faults_name_file_line_and_what_is_expected(tmp_path: Path, data: bytes, said: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(UserError) as caught:
        load_trace(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(UserError, match=r"expected an Azure, BurstGPT or AIBrix CSV"):
            load_trace(path)


def test_the_trace_that_comes_along() -> None:
    trace = load_trace(Path(str(resources.files("streams").joinpath("data/azure2023_conv.csv.gz"))))
    assert (trace.form, len(trace.arrivals_ms)) == ("azure", 19366)
    assert 3490 < trace.duration_s < 3510


def test_a_plain_csv_says_whose_each_request_is(tmp_path: Path) -> None:
    assert load_trace(write(tmp_path, PLAIN)).models == ("chat", "mini")
