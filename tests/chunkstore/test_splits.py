"""Splits: shares, keys, embargoes, and the audit that no obs is seen twice."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkstore import ConfigError, StoreWriter, UnknownNameError, open_store
from chunkstore.segments import cut_segments

_names = itertools.count()


def make(lengths, *, gaps=None, labels=None, groups=None, url=None):
    url = url or f"memory://splits-{next(_names)}"
    with StoreWriter(url, {"x": "i4"}, chunk=8, shard=32) as out:
        for i, n in enumerate(lengths):
            about = {}
            if labels is not None:
                about["label"] = labels[i]
            if groups is not None:
                about["group"] = groups[i]
            out.write(f"s{i}", {"x": np.arange(n)}, labels=about, gaps=(gaps or {}).get(i, ()))
    return open_store(url)


def owners(store, split):
    """Say which part sees each obs, the slow way: a set of parts an obs."""
    seen = [set() for _ in range(store.n_obs)]
    for part in split.parts:
        segments = store.segments(f"{split.name}:{part}")
        for start, stop in zip(segments.start.tolist(), segments.stop.tolist(), strict=True):
            for obs in range(start, stop):
                seen[obs].add(part)
    return seen


lengths_of = st.lists(st.integers(0, 60), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    lengths=lengths_of,
    seed=st.integers(-3, 2**40),
    by=st.sampled_from(["sequence", "time", "label", "group"]),
)
def test_no_obs_is_seen_by_two_parts_whatever_the_rule(data, lengths, seed, by):
    words = st.lists(st.sampled_from(["a", "b", "c"]), min_size=len(lengths), max_size=len(lengths))
    store = make(lengths, labels=data.draw(words), groups=data.draw(words))
    shares = data.draw(st.sampled_from([[0.8, 0.1, 0.1], [0.5, 0.25, 0.25], [0.2, 0.2, 0.2], [1, 0, 0]]))
    embargo = data.draw(st.integers(0, 9)) if by == "time" else 0
    on = by if by in ("label", "group") else None
    made = store.add_split("train/val/test", by=by, on=on, fractions=shares, embargo=embargo, seed=seed)
    assert max((len(s) for s in owners(store, made)), default=0) <= 1
    audit = store.audit_splits(window=5, horizon=2)
    assert audit.ok, audit.findings
    again = open_store(store.url).splits["train/val/test"]
    assert again.rule() == made.rule()
    assert np.array_equal(again.start, made.start)
    assert np.array_equal(again.part, made.part)
    whole = sum(shares) > 1 - 1e-9
    if whole and by != "time":
        assert sum(made.n_obs.values()) == store.n_obs


def test_shares_are_as_near_as_whole_sequences_allow():
    store = make([10] * 100)
    made = store.add_split("train/val", fractions=[0.83, 0.17])
    assert made.n_obs == {"train": 830, "val": 170}


def test_the_choice_depends_on_seed_and_ids_alone():
    a, b = make([10] * 50), make([20] * 50)
    first = a.add_split("train/val", seed=4)
    second = b.add_split("train/val", seed=4)
    assert np.array_equal(first.start * 2, second.start)
    other = a.add_split("train/val", seed=5, overwrite=True)
    assert not np.array_equal(first.start, other.start)


def test_labels_keep_their_shares_in_every_part():
    labels = ["rare"] * 10 + ["common"] * 90
    store = make([1] * 100, labels=labels)
    made = store.add_split("train/val", by="label", on="label", fractions=[0.8, 0.2], seed=1)
    seen = owners(store, made)
    assert sum("val" in s for s in seen[:10]) == 2
    assert sum("val" in s for s in seen[10:]) == 18


def test_groups_stay_together():
    groups = [f"recorder{i % 7}" for i in range(70)]
    store = make([3] * 70, groups=groups)
    made = store.add_split("train/val", by="group", on="group", fractions=[0.7, 0.3])
    seen = owners(store, made)
    for group in set(groups):
        assert len({frozenset(seen[3 * i]) for i in range(70) if groups[i] == group}) == 1
    assert {p: n for p, n in made.n_obs.items() if n}.keys() == {"train", "val"}


def test_an_embargo_keeps_windows_apart_on_each_side_of_a_cut():
    store = make([100], gaps={0: [(10, 20)]})
    made = store.add_split("train/val", by="time", fractions=[0.5, 0.5], embargo=7)
    assert made.ranges("train").tolist() == [[0, 43]]
    assert made.ranges("val").tolist() == [[57, 100]]
    train = store.segments("train")
    assert list(zip(train.start, train.stop, strict=True)) == [(0, 10), (20, 43)]
    assert store.audit_splits(window=8).warnings == ()
    assert "embargo=10" in store.audit_splits(window=20).warnings[0]
    assert store.audit_splits(window=30).visible["train/val"] == {"train": 0, "val": 43}
    assert store.audit_splits(window=30).windows["train/val"] == {"train": 0, "val": 14}


def test_the_audit_finds_a_split_that_leaks():
    store = make([50, 50], groups=["g", "g"])
    store.add_split("train/val", by="sequence")
    split = store.splits["train/val"]
    leak = type(split)(
        **{
            **split.__dict__,
            "start": np.array([0, 40]),
            "stop": np.array([50, 100]),
            "part": np.array([0, 1]),
        }
    )
    store._split_cache["train/val"] = leak
    audit = store.audit_splits()
    assert not audit.ok
    assert "obs [40, 50) are seen by train and val" in audit.findings[0]
    grouped = type(split)(**{**split.__dict__, "by": "group", "on": "group"})
    store._split_cache["train/val"] = grouped
    assert "group 'g' stands in" in store.audit_splits().findings[0]


def test_several_splits_live_side_by_side():
    store = make([10] * 10)
    store.add_split("fold0", parts=["train", "val"], seed=0)
    store.add_split("fold1", parts=["train", "val"], seed=1)
    with pytest.raises(UnknownNameError, match=r"2 splits with a part 'val'; there are: fold0:train"):
        store.segments("val")
    assert store.segments("fold1:val").n_obs == 50
    with pytest.raises(ConfigError, match="overwrite"):
        store.add_split("fold0", parts=["a", "b"])
    store.add_split("fold0", parts=["a", "b"], overwrite=True)
    assert list(open_store(store.url).splits) == ["fold0", "fold1"]
    assert store.segments("a").n_obs == 50


def test_adding_a_split_changes_nothing_else(tmp_path):
    from chunkstore import verify_store

    store = make([10] * 10, url=str(tmp_path / "a.zarr"))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "zarr.json"}
    fingerprint = store.fingerprint
    store.add_split("train/val")
    store.add_split("train/val", overwrite=True, seed=3)
    assert open_store(store.url).fingerprint == fingerprint
    assert {p: p.read_bytes() for p in before} == before
    assert verify_store(store.url, deep=True).findings == []


@pytest.mark.parametrize(
    "options",
    [
        {"name": "train/train"},
        {"name": "train/val", "fractions": [0.5]},
        {"name": "train/val", "fractions": [0.9, 0.2]},
        {"name": "train/val", "fractions": [-0.1, 0.2]},
        {"name": "train/val", "by": "moon"},
        {"name": "train/val", "by": "label"},
        {"name": "train/val", "by": "sequence", "on": "kind"},
        {"name": "train/val", "by": "sequence", "embargo": 3},
        {"name": "a b/c"},
        {"name": ""},
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(options):
    store = make([10] * 3)
    with pytest.raises(ConfigError):
        store.add_split(**options)
    assert open_store(store.url).splits == {}


@settings(max_examples=200, deadline=None)
@given(data=st.data(), lengths=st.lists(st.integers(0, 12), max_size=8))
def test_segments_are_what_is_left_of_each_sequence_obs_by_obs(data, lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    n = int(offsets[-1])

    def ranges():
        edges = sorted(data.draw(st.sets(st.integers(0, n), max_size=8)))
        return np.array(list(zip(edges[::2], edges[1::2], strict=False)), dtype=np.int64).reshape(-1, 2)

    gaps, keep = ranges(), data.draw(st.booleans()) and ranges()
    got = cut_segments(offsets, gaps=gaps, ranges=None if keep is False else keep)
    allowed = np.ones(n, bool) if keep is False else np.zeros(n, bool)
    for low, high in [] if keep is False else keep.tolist():
        allowed[low:high] = True
    for low, high in gaps.tolist():
        allowed[low:high] = False
    owner = np.repeat(np.arange(len(lengths)), lengths)
    seen = np.full(n, -1)
    for sequence, start, stop in zip(
        got.sequence.tolist(), got.start.tolist(), got.stop.tolist(), strict=True
    ):
        assert start < stop
        assert (seen[start:stop] == -1).all()
        seen[start:stop] = sequence
    assert np.array_equal(seen, np.where(allowed, owner, -1))
    assert (np.diff(got.start) > 0).all()


def test_a_seed_of_numpy_is_a_seed():
    store = make([1] * 9)
    kept = store.add_split("train/val", seed=np.int64(3))
    assert store.add_split("a/b", seed=3).part.tolist() == kept.part.tolist()
    assert open_store(store.url).splits["train/val"].seed == 3
    with pytest.raises(ConfigError, match=r"seed=1\.5"):
        store.add_split("c/d", seed=1.5)


def test_a_part_is_a_word_of_one_line():
    with pytest.raises(ConfigError, match="different words"):
        make([1, 1]).add_split("q", parts=["train\n", "val"])
