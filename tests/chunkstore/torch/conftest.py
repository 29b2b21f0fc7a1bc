"""Stores in which every value says where it came from."""

from __future__ import annotations

import numpy as np
import pytest

import chunkstore
from chunkstore.layout import FieldSpec

SIZES = (150, 40, 333, 8, 260, 0, 97, 512)
KINDS = ("owl", "wren", "owl", "owl", "tit", "owl", "wren", "tit")
SCALE = 0.5


def code(sequence, position):
    """Return the value that obs ``position`` of ``sequence`` has in the field ``x``; exact in float32."""
    return np.asarray(sequence) * 1000 + np.asarray(position)


def write(path, sizes=SIZES, kinds=KINDS, chunk=32, shard=128, first=0):
    """Write a store: ``x`` float32 says (sequence, position), ``n`` int16 the position, ``v`` both."""
    fields = [
        FieldSpec("x", "float32", units="m"),
        FieldSpec("n", "int16", scale_factor=SCALE),
        FieldSpec("v", "float32", items=2),
    ]
    with chunkstore.StoreWriter(path, fields=fields, chunk=chunk, shard=shard) as out:
        for number, (size, kind) in enumerate(zip(sizes, kinds, strict=True), start=first):
            at = np.arange(size)
            out.write(
                f"s{number}",
                {
                    "x": code(number, at).astype("f4"),
                    "n": at.astype("i2"),
                    "v": np.stack([np.full(size, number), at], axis=1).astype("f4"),
                },
                labels={"kind": kind},
                columns={"weight": float(number)},
            )
    return str(path)


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    """Return the place of one store of eight sequences, one of them empty, one shorter than most windows."""
    return write(tmp_path_factory.mktemp("coded") / "coded.zarr")


@pytest.fixture(scope="session")
def two_paths(tmp_path_factory):
    """Return the places of two stores of different lengths and chunk lengths; the codes run on."""
    folder = tmp_path_factory.mktemp("two")
    return [
        write(folder / "a.zarr", SIZES[:4], KINDS[:4], chunk=32, shard=64),
        write(folder / "b.zarr", SIZES[4:], ("jay", *KINDS[5:]), chunk=48, shard=144, first=4),
    ]


@pytest.fixture(scope="session")
def store(path):
    """Return the store of ``path``, open."""
    return chunkstore.open_store(path)
