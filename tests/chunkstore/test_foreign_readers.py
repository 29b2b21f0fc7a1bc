"""Those who never heard of us read a store: xarray, dask, zarr, cf_xarray, awkward."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from chunkstore import FieldSpec, StoreWriter, open_store

LENGTHS = [0, 1, 64, 1000, 300]
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def values():
    n = sum(LENGTHS)
    rng = np.random.default_rng(8)
    x = rng.normal(size=n).astype("f4")
    x[::17] = np.nan
    return {
        "x": x,
        "acc": rng.normal(size=(n, 3)),
        "audio": rng.integers(-32768, 32767, n).astype("i2"),
        "state": (np.arange(n) % 2).astype("u1"),
        "count": rng.integers(0, 9, n),
        "time": T0 + 20 * np.arange(n),
    }


@pytest.fixture(scope="module", params=["zstd", "default"])
def path(request, tmp_path_factory, values):
    fields = [
        FieldSpec("x", "float32", units="m s-1", long_name="speed"),
        FieldSpec("acc", "float64", items=3),
        FieldSpec("audio", "int16", scale_factor=2.0**-15),
        FieldSpec("state", "uint8", categories=("idle", "run")),
        FieldSpec("count", "int64", nullable=True),
        FieldSpec("time", "int64", units="milliseconds since 1970-01-01"),
    ]
    url = tmp_path_factory.mktemp("foreign") / "a.zarr"
    at = 0
    with StoreWriter(url, fields, chunk=64, shard=256, codec=request.param, attrs={"title": "walks"}) as out:
        for i, n in enumerate(LENGTHS):
            part = {k: v[at : at + n] for k, v in values.items()}
            out.write(
                f"s{i}",
                part,
                labels={"who": "ab"[i % 2]},
                columns={"rate": 50.0},
                gaps=[(0, 1)] if n > 500 else (),
            )
            at += n
    return url


def test_xarray_opens_it_with_no_warning_and_finds_everything_in_place(path, values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = xr.open_zarr(path)
        ds.load()
    assert dict(ds.sizes) == {"obs": sum(LENGTHS), "sequence": 5, "gap": 1, "acc_item": 3}
    assert {"id", "who", "rate", "time"} <= set(ds.coords)
    assert np.array_equal(ds.x.values, values["x"], equal_nan=True)
    assert ds.x.attrs == {"units": "m s-1", "long_name": "speed"}
    assert np.array_equal(ds.acc.values, values["acc"])
    assert np.allclose(ds.audio.values, values["audio"] / 2**15)
    assert ds.time.values[0] == np.datetime64(T0, "ms")
    assert ds.rowsize.values.tolist() == LENGTHS
    assert ds.id.values.tolist() == [f"s{i}" for i in range(5)]
    assert ds.attrs["title"] == "walks"
    assert ds.attrs["Conventions"].startswith("CF-")
    assert ds.attrs["chunkstore"]["status"] == "complete"


def test_opened_without_us_it_shows_the_same(path):
    code = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "sys.modules['chunkstore'] = None\n"
        "import xarray; ds = xarray.open_zarr(sys.argv[1])\n"
        "print(float(ds.x.sum()), ds.x.dims, ds.sizes['sequence'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "('obs',) 5" in done.stdout


def test_dask_reduces_each_field(path, values):
    for name, expected in values.items():
        array = da.from_zarr(str(path), component=name)
        assert np.isclose(
            float(da.nansum(array.astype("f8")).compute(scheduler="sync")), np.nansum(expected.astype("f8"))
        )


def test_cf_xarray_finds_the_ids(path):
    import cf_xarray  # noqa: F401 - registers the accessor

    assert xr.open_zarr(path).cf.cf_roles == {"timeseries_id": ["id"]}


def test_awkward_wraps_the_offsets_without_a_copy(path, values):
    ak = pytest.importorskip("awkward")
    store = open_store(path)
    content = store.read("x", 0, store.n_obs)
    offsets = store.sequences.offsets
    layout = ak.contents.ListOffsetArray(ak.index.Index64(offsets), ak.contents.NumpyArray(content))
    ragged = ak.Array(layout)
    assert np.shares_memory(layout.offsets.data, offsets)
    assert ak.num(ragged).to_list() == LENGTHS
    assert np.array_equal(ragged[3].to_numpy(), values["x"][65:1065], equal_nan=True)


def test_our_view_is_what_xarray_opens(path):
    ours = open_store(path).to_xarray()
    theirs = xr.open_zarr(path)
    xr.testing.assert_equal(ours.load(), theirs.load())
    for name in theirs.variables:
        assert {k: str(v) for k, v in theirs[name].attrs.items()} == {
            k: str(v.tolist()) if isinstance(v, np.ndarray) else str(v) for k, v in ours[name].attrs.items()
        }


def test_our_view_has_dask_chunks_equal_to_shards(path):
    ds = open_store(path).to_xarray()
    assert ds.x.chunks == ((256,) * 5 + (85,),)
    assert ds.x.encoding == {} or "chunks" not in ds.x.encoding


def test_a_view_computes_in_other_processes(path):
    import pickle

    ds = pickle.loads(pickle.dumps(open_store(path).to_xarray()))
    assert np.isfinite(float(ds.acc.mean().compute(scheduler="sync")))


def test_one_sequence_carries_its_columns_and_its_place(path, values):
    one = open_store(path).sequence("s3")
    assert one.sizes["obs"] == 1000
    assert one.who.item() == "b"
    assert one.attrs["start"] == 65
    assert np.array_equal(one.x.values, values["x"][65:1065], equal_nan=True)
    assert one.time.values[0] == np.datetime64(T0 + 20 * 65, "ms")
    assert open_store(path).sequence("s0").sizes["obs"] == 0


def test_plain_zarr_sees_consolidated_metadata_that_agree(path):
    import zarr

    group = zarr.open_group(path, mode="r")
    assert group.metadata.consolidated_metadata is not None
    loose = zarr.open_group(path, mode="r", use_consolidated=False)
    for name, array in group.arrays():
        assert json.dumps(loose[name].metadata.to_dict()) == json.dumps(array.metadata.to_dict())
