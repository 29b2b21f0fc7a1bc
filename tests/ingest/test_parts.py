"""Parts are kept as columns and come out as they went in, as values and as lines."""

from __future__ import annotations

import json
import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import IngestError
from ingest.parts import Parts, part_line
from ingest.protocol import Part

WORDS = st.sampled_from(["a", "b/ö", 'c"\\', "d\udce9", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=3,
)
NUMBERS = st.integers(-1, 2**63 - 1)
ROWS = st.lists(
    st.tuples(
        WORDS,
        WORDS,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        st.dictionaries(st.sampled_from(["at", "dtype", "x\n"]), VALUES),
        st.booleans(),
    ),
    max_size=12,
)


def exactly(value):
    """A text that tells 1, 1.0 and True apart, at any depth."""
    return repr(sorted(value.items()) if isinstance(value, dict) else value)


@given(ROWS)
def test_parts_come_out_as_they_went_in(rows):
    plain = [Part(i, *row) for i, row in enumerate(rows)]
    parts = Parts(plain)
    assert list(parts) == plain
    assert [exactly(p.payload) for p in parts] == [exactly(p.payload) for p in plain]
    assert list(parts[1:-1]) == plain[1:-1]
    assert list(pickle.loads(pickle.dumps(parts))) == plain
    assert parts.nbytes.tolist() == [p.nbytes for p in plain]
    assert parts.claimed.tolist() == [p.claimed for p in plain]
    assert parts.memory.tolist() == [p.memory for p in plain]
    assert parts.sequence.tolist() == [p.sequence for p in plain]
    assert parts.files == tuple(dict.fromkeys(p.file for p in plain))


@given(ROWS)
def test_lines_are_those_of_the_parts_one_by_one(rows):
    plain = [Part(i, *row) for i, row in enumerate(rows)]
    lines = b"".join(Parts(plain).blocks())
    assert lines == b"".join(map(part_line, plain))
    # an independent oracle: the whole row, as json writes it by itself
    for line, p in zip(lines.splitlines(), plain, strict=True):
        row = [p.index, p.file, p.identity, p.nbytes, p.claimed, p.memory, p.sequence, p.payload]
        assert line.decode() == json.dumps(row, separators=(",", ":"), sort_keys=True)


def test_lines_go_on_over_blocks():
    plain = [Part(i, f"f{i // 700}", "1", i, 1, 1, 0, {"at": i}) for i in range(9000)]
    blocks = list(Parts(plain).blocks())
    assert len(blocks) == 3
    assert b"".join(blocks) == b"".join(map(part_line, plain))


def test_parts_out_of_order_are_refused():
    with pytest.raises(IngestError, match="part 1 came in place 0"):
        Parts([Part(1, "f", "1", 0, 0, 0)])


def test_many_different_names_keep_no_index_of_themselves():
    names = [f"file-{i}" for i in range(10_000)]
    parts = Parts(Part(i, name, "1", 0, 0, 0) for i, name in enumerate(names * 2))
    assert len(parts.files) == 10_000
    assert parts[15_000].file == "file-5000"
    assert len(parts._file._known) <= 4096


def test_a_part_more_is_some_tens_of_bytes():
    def held(count):
        tracemalloc.start()
        parts = Parts(
            Part(i, "s3://bucket/r.avro", "1000-17", 1 << 20, 1000 + i, 1 << 26, 0, {"offset": i << 20})
            for i in range(count)
        )
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert parts[count - 1].claimed == 1000 + count - 1
        return size

    assert (held(20_000) - held(2_000)) / 18_000 < 80
