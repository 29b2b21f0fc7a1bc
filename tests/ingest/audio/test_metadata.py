"""Tables of metadata: every word and digit of theirs arrives, whatever pandas would make of them."""

from __future__ import annotations

import pandas as pd
import pytest

from chunkstore.errors import ConfigError
from chunkstore.layout import check_name
from ingest.sources.audio.metadata import read_table
from ingest.sources.audio.options import AudioOptions

FILES = ["a.wav", "b.wav", "NA.wav"]


def joined(tmp_path, text, name="m.csv"):
    """Return (dtype, values of a, b and NA) of each column of a table beside ``file``."""
    (tmp_path / name).write_text(text)
    table = read_table(str(tmp_path / name), "file", FILES, frozenset())
    return {c.name: (c.dtype, [None if r is None else r[c.name] for r in table.rows]) for c in table.columns}


def test_words_that_could_mean_a_missing_value_are_words(tmp_path):
    found = joined(tmp_path, "file,country,kind\na,NA,None\nb,DE,null\nNA,,dog\n")
    assert found == {"country": ("string", ["NA", "DE", ""]), "kind": ("string", ["None", "null", "dog"])}
    assert joined(tmp_path, "file,country\na,NA\nb,NA\nNA,NA\n")["country"][1] == ["NA"] * 3


def test_holes_among_numbers_are_holes(tmp_path):
    dtype, values = joined(tmp_path, "file,depth\na,NA\nb,2.5\nNA,\n")["depth"]
    assert dtype == "float64"
    assert [v != v for v in values] == [True, False, True]


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ((2**60 + 1, "", 5), "string"),
        ((2**63 + 1, 3, 5), "uint64"),
        ((10**29, 3, 5), "string"),
        ((-(2**63), 3, 5), "int64"),
    ],
)
def test_numbers_keep_every_digit(tmp_path, numbers, dtype):
    rows = "".join(f"{f},{n}\n" for f, n in zip(("a", "b", "NA"), numbers, strict=True))
    found, values = joined(tmp_path, f"file,n\n{rows}")["n"]
    assert found == dtype
    assert [str(v) for v in values] == [str(n) for n in numbers]


def test_integers_with_holes_of_a_parquet_file_keep_every_digit(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"file": ["a", "b", "NA"], "n": pd.array([2**60 + 1, None, 5], dtype="Int64")})
    frame.to_parquet(tmp_path / "m.parquet")
    table = read_table(str(tmp_path / "m.parquet"), "file", FILES, frozenset())
    assert [row["n"] for row in table.rows] == [2**60 + 1, None, 5]


def test_a_column_of_a_long_name_gets_one_that_a_store_takes(tmp_path):
    names = list(joined(tmp_path, f"file,{'x' * 300},{'x' * 299}y\na,1,2\n"))
    assert len(set(names)) == 2
    for name in names:
        check_name(f"{name}_code", "a column")


@pytest.mark.parametrize(("given", "rate"), [(8000.0, 8000), (8000, 8000)])
def test_a_rate_is_a_whole_number(given, rate):
    assert type(AudioOptions(rate=given).rate) is int
    assert AudioOptions(rate=given).rate == rate
    with pytest.raises(ConfigError, match="whole number"):
        AudioOptions(rate=8000.5)
    with pytest.raises(ConfigError, match="channels"):
        AudioOptions(channels="²")
