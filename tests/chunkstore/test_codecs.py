"""Codecs: what each stands for, and that bytes which do not decode never become values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore import ConfigError, FormatError
from chunkstore.codecs import CODECS, ChunkDamageError, checksum, codec_chain, parse_chain, parse_name
from chunkstore.reader import decode_strings, encode_strings

CHAINS = ["none", "lz4", "zstd", "blosc-lz4", "blosc-zstd", "pcodec"]


@pytest.mark.parametrize(
    ("codec", "dtype", "shuffle"),
    [
        ("blosc-lz4", "f4", "shuffle"),
        ("blosc-zstd", "i8", "shuffle"),
        ("blosc-lz4", "i2", "bitshuffle"),
        ("blosc-lz4", "u1", "noshuffle"),
        ("lz4", "f8", "noshuffle"),
        ("default", "f4", "shuffle"),
    ],
)
def test_blosc_shuffles_by_dtype(codec, dtype, shuffle):
    assert codec_chain(codec, np.dtype(dtype))[1]["configuration"]["shuffle"] == shuffle


def test_pcodec_leaves_small_dtypes_to_blosc():
    assert codec_chain("pcodec", np.dtype("f4"))[0]["name"] == "numcodecs.pcodec"
    assert codec_chain("pcodec", np.dtype("bool"))[1]["configuration"]["cname"] == "zstd"


@pytest.mark.parametrize("name", [*CODECS, "zstd:22", "blosc-lz4:1", "pcodec:12"])
def test_every_codec_of_the_list_is_taken(name):
    assert parse_name(name)


@pytest.mark.parametrize("name", ["ZSTD", "zstd:0", "zstd:23", "lz4:", "default:1", "gzip", "zstd:3:4", None])
def test_another_is_refused(name):
    with pytest.raises(ConfigError):
        parse_name(name)


def test_checksums_are_castagnolis():
    assert checksum(b"123456789") == 0xE3069283
    assert checksum(memoryview(b"x123456789")[1:]) == 0xE3069283
    assert checksum(np.frombuffer(b"123456789", "u1")) == 0xE3069283
    assert checksum(b"") == checksum(bytearray()) == 0


@settings(max_examples=150, deadline=None)
@given(codec=st.sampled_from(CHAINS), crc=st.booleans(), junk=st.binary(max_size=200))
def test_junk_is_damage_whatever_the_codec(codec, crc, junk):
    chain = parse_chain(codec_chain(codec, np.dtype("f4"), crc=crc), np.dtype("f4"))
    out = np.zeros(64, "f4")
    if codec == "none" and len(junk) == 256:
        return
    with pytest.raises(ChunkDamageError):
        chain.decode_into(junk, out)


@settings(max_examples=200, deadline=None)
@given(codec=st.sampled_from(CHAINS), data=st.data())
def test_a_chunk_cut_short_or_of_another_length_is_damage(codec, data):
    chain = parse_chain(codec_chain(codec, np.dtype("f4")), np.dtype("f4"))
    whole = chain.encode(np.arange(100, dtype="f4"))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ChunkDamageError):
        chain.decode_into(whole[:cut], np.empty(100, "f4"))
    with pytest.raises(ChunkDamageError, match="expected"):
        chain.decode_into(whole, np.empty(99, "f4"))
    with pytest.raises(ChunkDamageError):
        chain.decode_into(whole, np.empty(101, "f4"))


@pytest.mark.parametrize(
    "codecs",
    [
        [],
        [{"name": "crc32c"}],
        [{"name": "zstd"}],
        [{"name": "bytes"}, {"name": "gzip"}],
        [{"name": "bytes"}, {"name": "zstd"}, {"name": "zstd"}],
        [{"name": "bytes"}, {"name": "zstd", "configuration": {}}],
        [
            {"name": "bytes"},
            {"name": "blosc", "configuration": {"cname": "zlib", "clevel": 1, "shuffle": "shuffle"}},
        ],
        [{"name": "bytes", "configuration": {"endian": "middle"}}],
        [{"nom": "bytes"}],
        [7],
        [None, None],
    ],
)
def test_a_chain_that_the_format_does_not_know_is_refused(codecs):
    with pytest.raises(FormatError):
        parse_chain(codecs, np.dtype("f4"))


@given(st.lists(st.text(max_size=20), max_size=30))
def test_strings_come_back(texts):
    assert decode_strings(encode_strings(texts)) == texts


@given(st.binary(max_size=60))
def test_junk_strings_are_damage_or_strings(data):
    try:
        found = decode_strings(data)
    except ChunkDamageError:
        return
    assert encode_strings(found) == data
