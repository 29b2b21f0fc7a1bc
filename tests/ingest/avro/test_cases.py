"""Files of other libraries' tests and real recordings: fastavro's values, or the fault by its name."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from chunkstore.errors import ConfigError, InputError, UnsupportedError

pytestmark = pytest.mark.data

#: file -> (rows that are stored, code -> rows in quarantine)
DAMAGED = {
    "apache/avro-1237-bad-union-discriminant.avro": (0, {"avro-truncated": 0, "avro-union": 2}),
    "apache/avro-1238-truncated.avro": (0, {"avro-truncated": 2}),
    "apache/person-10.no-codec.avro": (10, {"avro-truncated": 0}),
    "goavro/blockCountExceedsMaxBlockCount.avro": (0, {"avro-truncated": 0}),
    "goavro/blockSizeExceedsMaxBlockSize.avro": (0, {"avro-truncated": 1}),
    "goavro/blockSizeNotGreaterThanZero.avro": (0, {"avro-truncated": 0}),
    "goavro/cannotDiscardBlockBytes.avro": (0, {"avro-truncated": 1}),
    "goavro/cannotReadBlockSize.avro": (0, {"avro-truncated": 0}),
    "goavro/cannotReadSyncMarker.avro": (0, {"avro-truncated": 1}),
    "goavro/firstBlockCountNotGreaterThanZero.avro": (0, {"avro-truncated": 0}),
    "goavro/secondBlockCountZero.avro": (0, {"avro-trailing": 1, "avro-truncated": 0}),
    "goavro/syncMarkerMismatch.avro": (0, {"avro-sync-mismatch": 1}),
    "goavro/temp1.avro": (0, {"avro-decompress": 1}),
    "hamba/deflate-invalid-data.avro": (0, {"avro-truncated": 0, "avro-decompress": 1}),
    "hamba/snappy-invalid-crc.avro": (0, {"avro-truncated": 0, "avro-crc": 1}),
    "hamba/snappy-invalid-data.avro": (0, {"avro-truncated": 0, "avro-decompress": 1}),
    "hamba/snappy-short-crc.avro": (0, {"avro-decompress": 1}),
    "hamba/zstd-invalid-data.avro": (0, {"avro-truncated": 0, "avro-decompress": 1}),
}
#: what no scan accepts, and why
REFUSED = {"goavro/bad-header.avro": "begins with", "goavro/temp0.avro": "holds no byte"}
#: files without a number in them, or with nothing but what 64 bits cannot hold
NOTHING = "no field is left to store"


def files(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("decoder", ["kernel", "fastavro"])
def test_every_file_gives_fastavros_values_or_a_named_fault(avro, shared_data, decoder):
    root = shared_data / "avro-cases"
    met = Counter()
    for path in files(root):
        name = path.relative_to(root).as_posix()
        if name in REFUSED:
            with pytest.raises(InputError, match=REFUSED[name]):
                avro.read(path, sequence_per="all", decoder=decoder)
            met["refused"] += 1
            continue
        try:
            got = avro.read(path, sequence_per="all", decoder=decoder)
        except ConfigError as error:
            assert NOTHING in str(error), name  # noqa: PT017 # most files do not raise
            met["nothing"] += 1
            continue
        lost = sum(hi - lo for lo, hi in got.lost)
        if name in DAMAGED:
            rows, codes = DAMAGED[name]
            assert got.rows - lost == rows, name
            found = Counter()
            for fault in got.faults:
                found[fault.code] += fault.rows
            assert found == codes, name
            met["damaged"] += 1
            continue
        assert not got.faults, name
        truth = avro.records(path)
        assert got.rows == len(truth), name
        for field in got.scan.fields:
            values, valid = avro.expected(field, truth)
            own = got.columns.get(field.name, np.empty(values.shape, values.dtype))
            assert np.array_equal(own, values, equal_nan=own.dtype.kind == "f"), (name, field.name)
            if field.nullable:
                assert np.array_equal(got.columns[f"{field.name}_valid"], valid), (name, field.name)
        met["equal"] += 1
    assert met["damaged"] == len(DAMAGED)
    assert met["refused"] == len(REFUSED)
    assert met["equal"] >= 60


def test_text_comes_back_as_keys(avro, shared_data):
    root = shared_data / "avro-cases"
    checked = 0
    for path in files(root):
        name = path.relative_to(root).as_posix()
        if name in DAMAGED or name in REFUSED:
            continue
        truth = avro.records(path)
        if not truth or not isinstance(truth[0], dict):
            continue
        text = [
            k
            for k, v in truth[0].items()
            if isinstance(v, str) and not k.startswith(("f1", "f2", "gender", "enum"))
        ]
        for key in text[:2]:
            try:
                got = avro.read(path, sequence_key=key)
            except (ConfigError, UnsupportedError) as error:
                assert NOTHING in str(error) or "not one type" in str(error), name  # noqa: PT017 # nor here
                continue
            assert got.sequence == ["null" if r[key] is None else r[key] for r in truth], name
            checked += 1
    assert checked > 20


RECORDINGS = [
    ("weather", {"sequence_key": "station", "time": "time"}, 26_115, 3),
    ("vowels-steps", {"sequence_key": "utterance", "labels": "speaker"}, 9_961, 640),
    (
        "vowels-records",
        {"sequence_key": "utterance", "sequence_per": "record", "labels": "speaker"},
        9_961,
        640,
    ),
    ("gait", {"sequence_per": "all", "time": "time"}, 7_040, 0),
    ("heart", {"sequence_per": "file", "time": "time"}, 68_476, 0),
]


@pytest.mark.parametrize(("folder", "options", "rows", "keys"), RECORDINGS, ids=[r[0] for r in RECORDINGS])
def test_recordings_are_what_fastavro_reads(avro, shared_data, folder, options, rows, keys):
    paths = files(shared_data / "avro" / folder)
    got = avro.read(paths, decoder="kernel", **options)
    assert (got.rows, len(got.keys), got.faults) == (rows, keys, [])
    truth = [r for p in paths for r in avro.records(p)]
    if folder == "vowels-records":
        want = np.concatenate([np.array(r["lpc"], np.float32).T for r in truth])
        assert np.array_equal(got.columns["lpc"], want)
        assert got.labels["speaker"] == {r["utterance"]: r["speaker"] for r in truth}
        return
    for field in got.scan.fields:
        values, _ = avro.expected(field, truth)
        assert np.array_equal(got.columns[field.name], values, equal_nan=values.dtype.kind == "f"), field.name
    key = options.get("sequence_key")
    if key:
        assert got.sequence == [r[key] for r in truth]


def test_utterances_are_the_same_by_step_and_by_record(avro, shared_data):
    steps = avro.read(files(shared_data / "avro" / "vowels-steps"), sequence_key="utterance", fields="lpc")
    records = avro.read(
        files(shared_data / "avro" / "vowels-records"), sequence_key="utterance", sequence_per="record"
    )
    by_step = np.stack([steps.columns[f"lpc.c{i:02d}"] for i in range(12)], axis=1)
    for key in ("train-000", "train-100", "test-200"):
        if key in steps.keys:
            a = by_step[[s == key for s in steps.sequence]]
            b = records.columns["lpc"][[s == key for s in records.sequence]]
            assert np.array_equal(a, b)


def test_drift_is_an_error_with_a_rule_to_choose_or_a_union(avro, shared_data):
    paths = files(shared_data / "avro" / "weather-drift")
    with pytest.raises(InputError, match=r"wind_gust: absent in 6 files.*on_drift='union'"):
        avro.read(paths, sequence_key="station")
    got = avro.read(paths, sequence_key="station", on_drift="union", time="time")
    want = avro.read(files(shared_data / "avro" / "weather"), sequence_key="station", time="time")
    assert got.rows == want.rows == 26_115
    for name in ("time", "temp", "visib"):
        assert np.array_equal(got.columns[name], want.columns[name], equal_nan=True)
    first = sum(len(avro.records(p)) for p in paths[:6])
    assert np.isnan(got.columns["wind_gust"][:first]).all()
    assert np.array_equal(got.columns["precip"][first:], want.columns["precip"][first:], equal_nan=True)
    some = avro.read(paths, sequence_key="station", fields=["temp"])
    assert np.array_equal(some.columns["temp"], want.columns["temp"], equal_nan=True)
