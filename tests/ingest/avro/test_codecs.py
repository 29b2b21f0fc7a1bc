"""Decompression is bounded, checked and named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.errors import MissingDependencyError
from ingest.sources.avro import codecs
from ingest.sources.avro.codecs import CODECS, CodecError, Limits, decompress

PACKED = [c for c in CODECS if c != "null"]


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None)
@given(data=st.binary(max_size=3000) | st.integers(0, 5000).map(lambda n: b"abc" * n))
def test_what_was_compressed_comes_back(avro, codec, data):
    assert bytes(decompress(codec, avro.compress(codec, data), 1 << 20)) == data


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_refused_at_the_limit(avro, codec):
    bomb = avro.compress(codec, bytes(8 << 20))
    with pytest.raises(CodecError, match="decompresses to more than 1048576 bytes") as error:
        decompress(codec, bomb, 1 << 20)
    assert error.value.code == "avro-bomb"
    assert len(decompress(codec, bomb, 8 << 20)) == 8 << 20


@pytest.mark.parametrize("codec", PACKED)
@settings(deadline=None)
@given(data=st.binary(max_size=60))
def test_garbage_is_a_fault(codec, data):
    try:
        decompress(codec, data, 1 << 16)
    except CodecError as error:
        assert error.code in ("avro-decompress", "avro-bomb", "avro-crc")  # noqa: PT017 # it may decompress


@pytest.mark.parametrize("codec", PACKED)
def test_a_block_that_is_cut_is_a_fault(avro, codec):
    packed = avro.compress(codec, bytes(range(256)) * 20)
    with pytest.raises(CodecError) as error:
        decompress(codec, packed[:-5], 1 << 20)
    assert error.value.code in ("avro-decompress", "avro-crc")


def test_the_checksum_of_snappy_is_looked_at(avro):
    packed = bytearray(avro.compress("snappy", b"0123456789"))
    packed[-1] ^= 1
    with pytest.raises(CodecError, match="CRC32") as error:
        decompress("snappy", bytes(packed), 100)
    assert error.value.code == "avro-crc"


def test_the_limit_follows_the_ratio_for_large_blocks_only():
    limits = Limits(max_block=1 << 30, max_ratio=100, free=1 << 20)
    assert limits.decoded(10) == 1 << 20
    assert limits.decoded(1 << 20) == 100 << 20
    assert limits.decoded(1 << 28) == 1 << 30


def test_a_missing_library_is_found_while_planning(monkeypatch):
    monkeypatch.setattr(codecs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match=r"codec 'zstandard' of 2 file\(s\), first 'a'.*pip install cramjam"
    ):
        codecs.require("zstandard", ["a", "b"])
    codecs.require("null", ["a"])
