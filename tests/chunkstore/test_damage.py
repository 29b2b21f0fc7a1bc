"""Damage is found, named, and never becomes numbers."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from chunkstore import ChunkstoreError, CorruptDataError, FormatError, StoreWriter, open_store, verify_store

if TYPE_CHECKING:
    from pathlib import Path

N = 6000


def sample():
    rng = np.random.default_rng(1)
    return {
        "x": np.round(np.cumsum(rng.normal(size=N)), 2).astype("f4"),
        "v": rng.integers(-500, 500, (N, 3)).astype("i2"),
    }


def write(path: Path, codec: str) -> dict[str, np.ndarray]:
    data = sample()
    with StoreWriter(path, {"x": "f4", "v": "3i2"}, chunk=128, shard=1024, codec=codec) as out:
        for i in range(6):
            out.write(
                f"s{i}",
                {k: v[i * 1000 : (i + 1) * 1000] for k, v in data.items()},
                labels={"kind": "ab"[i % 2]},
            )
    return data


@pytest.mark.parametrize("codec", ["none", "zstd", "blosc-lz4"])
def test_every_single_bit_flip_is_found_by_verify_and_by_reading_and_named(tmp_path, codec):
    store_path = tmp_path / "a.zarr"
    data = write(store_path, codec)
    assert verify_store(store_path, deep=True).ok
    rng = np.random.default_rng(17)
    objects = sorted(p for p in store_path.glob("[xv]/c/**/*") if p.is_file())
    sizes = np.array([p.stat().st_size for p in objects])
    for _ in range(100):
        at = int(rng.integers(sizes.sum()))
        which = int(np.searchsorted(np.cumsum(sizes), at, side="right"))
        path, byte = objects[which], at - int(np.cumsum(sizes)[which] - sizes[which])
        good = path.read_bytes()
        bad = bytearray(good)
        bad[byte] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        try:
            field = path.relative_to(store_path).parts[0]
            shard = int(path.relative_to(store_path).parts[2])
            report = verify_store(store_path, deep=True)
            assert [f.array for f in report.findings] == [field], (byte, report.findings)
            found = report.findings[0]
            assert found.shard == shard
            assert found.sequences
            assert f"sequences '{found.sequences[0]}'" in found.message
            for engine in ("direct", "zarrs"):
                store = open_store(store_path, engine=engine)
                with pytest.raises(CorruptDataError, match=rf"field '{field}', shard {shard}.*sequence"):
                    store.read(field, found.start, found.stop)
                other = "v" if field == "x" else "x"
                assert np.array_equal(store.read(other, 0, N), data[other])
        finally:
            path.write_bytes(good)
    assert verify_store(store_path, deep=True).ok


@pytest.fixture
def store_path(tmp_path):
    write(tmp_path / "a.zarr", "zstd")
    return tmp_path / "a.zarr"


@pytest.mark.parametrize("engine", ["direct", "zarrs"])
def test_a_shard_that_is_gone_is_an_error_not_fill(store_path, engine):
    (store_path / "x/c/2").unlink()
    with pytest.raises(CorruptDataError, match=r"shard 2.*missing"):
        open_store(store_path, engine=engine).read("x", 0, N)
    assert [(f.code, f.array, f.shard) for f in verify_store(store_path).findings] == [
        ("missing-shard", "x", 2)
    ]


@pytest.mark.parametrize("engine", ["direct", "zarrs"])
@pytest.mark.parametrize("left", [0, 3, 100, -1, -5])
def test_a_truncated_shard_is_an_error(store_path, engine, left):
    path = store_path / "x/c/1"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CorruptDataError, match="shard 1"):
        open_store(store_path, engine=engine).read("x", 1500, 1510)
    assert [f.shard for f in verify_store(store_path).findings] == [1]


def test_a_chunk_of_another_place_is_found_where_its_checksum_holds(store_path):
    shutil.copy(store_path / "x/c/1", store_path / "x/c/5")  # the last shard is short: too many chunks now
    assert [(f.code, f.shard) for f in verify_store(store_path).findings] == [("index", 5)]


def test_bytes_that_nobody_owns_are_found(store_path):
    (store_path / "x/c/99").write_bytes(b"abc")
    (store_path / "notes.txt").write_text("hello")
    assert {f.code for f in verify_store(store_path).findings} == {"stray"}


def test_damage_along_sequence_is_named(store_path):
    path = store_path / "rowsize/c/0"
    bad = bytearray(path.read_bytes())
    bad[len(bad) // 2] ^= 4
    path.write_bytes(bad)
    with pytest.raises(CorruptDataError, match="rowsize"):
        _ = open_store(store_path).sequences.rowsize
    assert [f.array for f in verify_store(store_path).findings] == ["rowsize"]


@pytest.mark.parametrize("inside", ["x/c/1", "x", "id/c/0"])
def test_links_out_of_a_store_are_refused(store_path, tmp_path, inside):
    outside = tmp_path / "outside"
    shutil.move(store_path / inside, outside)
    (store_path / inside).symlink_to(outside)
    store = open_store(store_path)
    use = (lambda: store.sequences.ids) if inside.startswith("id") else (lambda: store.read("x", 1500, 1600))
    with pytest.raises(FormatError, match="symbolic link"):
        use()
    assert not verify_store(store_path).ok


def test_a_store_may_be_reached_through_a_link(store_path, tmp_path):
    (tmp_path / "link.zarr").symlink_to(store_path)
    assert open_store(tmp_path / "link.zarr").read("x", 0, 3).tolist() == sample()["x"][:3].tolist()


def edit(path: Path, change) -> None:
    root = json.loads((path / "zarr.json").read_text())
    change(root)
    (path / "zarr.json").write_text(json.dumps(root))


def own(root):
    return root["attributes"]["chunkstore"]


def meta(root, name):
    return root["consolidated_metadata"]["metadata"][name]


def inner(root, name):
    return meta(root, name)["codecs"][0]["configuration"]


FORGERIES = {
    "negative length": lambda r: meta(r, "x")["shape"].__setitem__(0, -1),
    "length beyond int64": lambda r: meta(r, "x")["shape"].__setitem__(0, 2**70),
    "length as text": lambda r: meta(r, "x").update(shape=["6000"]),
    "another length": lambda r: meta(r, "x").update(shape=[5999]),
    "n_obs negative": lambda r: own(r).update(n_obs=-5),
    "n_obs overflowing": lambda r: own(r).update(n_obs=2**64),
    "n_obs true": lambda r: own(r).update(n_obs=True),
    "chunk zero": lambda r: own(r).update(chunk=0),
    "chunk as float": lambda r: own(r).update(chunk=128.0),
    "chunk that does not divide": lambda r: own(r).update(chunk=100),
    "huge chunk": lambda r: (
        own(r).update(chunk=2**30, shard=2**30),
        [inner(r, n).update(chunk_shape=[2**30, *meta(r, n)["shape"][1:]]) for n in "xv"],
        [
            meta(r, n)["chunk_grid"]["configuration"].update(chunk_shape=[2**30, *meta(r, n)["shape"][1:]])
            for n in "xv"
        ],
    ),
    "huge chunk of ids": lambda r: meta(r, "id")["chunk_grid"]["configuration"].update(chunk_shape=[2**21]),
    "huge shard": lambda r: meta(r, "x")["chunk_grid"]["configuration"].update(chunk_shape=[2**59]),
    "codec that does not exist": lambda r: inner(r, "x")["codecs"].insert(1, {"name": "gzip9"}),
    "codec that is no object": lambda r: inner(r, "x").update(codecs=["zstd"]),
    "no codecs": lambda r: inner(r, "x").update(codecs=[]),
    "blosc of nonsense": lambda r: inner(r, "x").update(
        codecs=[{"name": "bytes"}, {"name": "blosc", "configuration": {"cname": "x", "clevel": 99}}]
    ),
    "big endian": lambda r: inner(r, "x")["codecs"][0].update(configuration={"endian": "big"}),
    "dtype that does not exist": lambda r: meta(r, "x").update(data_type="float31"),
    "dtype as a list": lambda r: meta(r, "x").update(data_type=["float32"]),
    "fill of 7": lambda r: meta(r, "v").update(fill_value=7),
    "no dimension names": lambda r: meta(r, "x").pop("dimension_names"),
    "units as a number": lambda r: meta(r, "x")["attributes"].update(units=5),
    "units of a column as a list": lambda r: meta(r, "kind")["attributes"].update(units=["m"]),
    "scale factor as text": lambda r: meta(r, "x")["attributes"].update(scale_factor="much"),
    "attributes as a list": lambda r: meta(r, "x").update(attributes=[]),
    "array that is a group": lambda r: meta(r, "x").update(node_type="group"),
    "rowsize as text": lambda r: meta(r, "rowsize").update(data_type="string"),
    "fields that name nothing": lambda r: own(r).update(fields=["x", "nothing"]),
    "fields that climb": lambda r: own(r).update(fields=["../x"]),
    "fields as a number": lambda r: own(r).update(fields=7),
    "columns that name nothing": lambda r: own(r).update(columns=["nothing"]),
    "format 2": lambda r: own(r).update(format=2),
    "status maybe": lambda r: own(r).update(status="maybe"),
    "splits as a list": lambda r: own(r).update(splits=[1]),
    "splits that climb": lambda r: own(r).update(splits={"a": {"array": "../../x", "parts": ["a"]}}),
    "no arrays at all": lambda r: r["consolidated_metadata"].update(metadata={}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_metadata_is_refused_as_a_format_error(store_path, name):
    edit(store_path, FORGERIES[name])
    with pytest.raises(FormatError, match=r"a\.zarr"):
        open_store(store_path)
    assert [f.code for f in verify_store(store_path).findings] == ["format"]


LATER = {
    "shards that are no ranges": (
        lambda r: own(r).update(shards={"x": [1, 2, 3]}),
        lambda s: s.read("x", 0, 5),
    ),
    "statistics of text": (lambda r: own(r).update(statistics={"x": {"count": "?"}}), lambda s: s.statistics),
    "statistics as a list": (lambda r: own(r).update(statistics=[]), lambda s: s.statistics),
    "no fingerprint": (lambda r: own(r).pop("fingerprint"), lambda s: s.fingerprint),
    "codes without their words": (
        lambda r: meta(r, "kind_code")["attributes"].update(categories=["a"]),
        lambda s: s.sequences.codes("kind"),
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_forged_metadata_that_is_met_later_is_a_format_error_then(store_path, name):
    change, use = LATER[name]
    edit(store_path, change)
    store = open_store(store_path)
    with pytest.raises(FormatError):
        use(store)
    assert not verify_store(store_path).ok


@pytest.mark.parametrize(
    "forged", [[6000, -1000, 1000, 0, 0, 0], [1, 1, 1, 1, 1, 1], [2**62, 2**62, 2**62, 2**62, 6000, 0]]
)
def test_a_rowsize_that_does_not_sum_is_refused(store_path, forged):
    from chunkstore.places import LocalPlace
    from chunkstore.plain import write_plain

    write_plain(LocalPlace(store_path), "rowsize", np.array(forged), "sequence", data_type="int64")
    with pytest.raises(FormatError, match="rowsize"):
        _ = open_store(store_path).sequences.offsets
    assert "sequences" in {f.code for f in verify_store(store_path).findings}


@pytest.mark.parametrize("name", ["rowsize", "id", "kind", "kind_code", "split_part"])
def test_a_chunk_that_is_gone_along_sequence_is_damage(store_path, name):
    store = open_store(store_path)
    store.add_split("train/val")
    array = (
        name if name != "split_part" else f"{store.attrs['chunkstore']['splits']['train/val']['array']}_part"
    )
    (store_path / array / "c/0").unlink()
    store = open_store(store_path)
    uses = {
        "rowsize": lambda: store.n_sequences and store.segments(),
        "id": lambda: store.sequences.index_of("s1"),
        "kind": lambda: store.sequences.column("kind"),
        "kind_code": lambda: store.sequences.codes("kind"),
        "split_part": lambda: store.segments("train"),
    }
    with pytest.raises(CorruptDataError, match=f"{array}.*missing"):
        uses[name]()
    assert {f.array for f in verify_store(store_path).findings} == {array}


def test_a_claim_of_ten_to_the_eighteen_sequences_costs_nothing(store_path):
    def claim(root):
        for name in ("rowsize", "id"):
            meta(root, name)["shape"] = [10**18]

    edit(store_path, lambda r: (claim(r), own(r).update(columns=[])))
    with pytest.raises(CorruptDataError):
        _ = open_store(store_path).sequences.rowsize


def test_gaps_that_overlap_are_refused(store_path):
    from chunkstore.places import LocalPlace
    from chunkstore.plain import write_plain

    def grow(root):
        for name in ("gap_start", "gap_stop"):
            meta(root, name)["shape"] = [2]
            meta(root, name)["chunk_grid"]["configuration"]["chunk_shape"] = [2]

    place = LocalPlace(store_path)
    write_plain(place, "gap_start", np.array([10, 15]), "gap", data_type="int64")
    write_plain(place, "gap_stop", np.array([20, 30]), "gap", data_type="int64")
    edit(store_path, grow)
    with pytest.raises(FormatError, match=r"gap 1 is \[15, 30\)"):
        open_store(store_path).segments()


def test_a_bomb_of_zeros_claims_no_more_memory_than_a_chunk(store_path):
    """A chunk of strings whose frame claims 2**40 bytes is refused from its header."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0b11100000]) + (2**40).to_bytes(8, "little") + b"\0" * 8
    from chunkstore.codecs import checksum

    (store_path / "id/c/0").write_bytes(frame + checksum(frame).to_bytes(4, "little"))
    with pytest.raises(CorruptDataError, match="claims"):
        _ = open_store(store_path).sequences.ids


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"{}", b'{"attributes": []}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_root_that_is_not_ours_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr/zarr.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.zarr"):
        open_store(tmp_path / "a.zarr")


JUNK = [
    None,
    -1,
    0,
    2**31,
    2**63,
    2**70,
    "",
    "a",
    "../x",
    [],
    {},
    1.5,
    True,
    1e300,
    [1],
    [[1, 2]],
    {"a": 1},
    [None],
]
JUNK += [["x", "x"], {"name": "zstd"}, "NaN", -(2**63), 128]
USES = [
    lambda s: s.segments(),
    lambda s: s.statistics,
    lambda s: s.segments("train"),
    lambda s: s.audit_splits(5),
    lambda s: s.sequences.to_pandas(),
    lambda s: s.fingerprint,
    lambda s: s.read("x", 0, min(s.n_obs, N)),
    lambda s: s.read("v", 0, min(s.n_obs, N)),
    lambda s: s.engine,
    lambda s: s.sequence("s1") if s.n_obs <= N else None,
    lambda s: s.to_xarray(),
    lambda s: s.stored_bytes("x", 0),
]


def nodes(tree, path=()):
    """Yield the path of every value in a JSON tree."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from nodes(value, (*path, key))


def test_values_replaced_anywhere_in_the_root_never_escape_the_error_tree(store_path):
    """Whatever stands in the metadata, each use gives an answer or an error of ours."""
    open_store(store_path).add_split("train/val")
    good = (store_path / "zarr.json").read_text()
    places = list(nodes(json.loads(good)))
    rng = np.random.default_rng(11)
    opened = 0
    for _ in range(250):
        root = json.loads(good)
        *path, last = places[int(rng.integers(len(places)))]
        node = root
        for key in path:
            node = node[key]
        node[last] = JUNK[int(rng.integers(len(JUNK)))]
        (store_path / "zarr.json").write_text(json.dumps(root))
        with contextlib.suppress(ChunkstoreError):
            store = open_store(store_path)
            opened += 1
            for use in USES:
                with contextlib.suppress(ChunkstoreError):
                    use(store)
        with contextlib.suppress(ChunkstoreError):
            verify_store(store_path)
    assert opened > 20


def test_random_mutations_of_the_root_never_escape_the_error_tree(store_path):
    text = (store_path / "zarr.json").read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(300):
        bad = bytearray(text)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(bad)))
            bad[at] = int(rng.integers(32, 127))
        (store_path / "zarr.json").write_bytes(bad)
        try:
            store = open_store(store_path)
            store.segments()
            if "x" in store.fields and store.n_obs < 10**6:
                store.read("x", 0, store.n_obs)
            _ = store.statistics
        except ChunkstoreError:
            pass


def test_checking_goes_on_to_the_end_whatever_is_missing_there(store_path):
    shards = sorted(store_path.glob("x/c/*"), key=lambda p: int(p.name))
    shards[-1].unlink()
    told = []
    report = verify_store(store_path, progress=lambda done, total: told.append((done, total)))
    assert any(f.code == "missing-shard" for f in report.findings)
    assert [done for done, _ in told] == list(range(1, told[0][1] + 1))
