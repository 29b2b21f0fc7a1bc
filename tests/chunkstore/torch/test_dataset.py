"""Batches of tensors: what they hold, in which order, and how a run goes on from a state."""

from __future__ import annotations

import json
import threading
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import chunkstore
from chunkstore import StoreWriter
from chunkstore.errors import ConfigError, CorruptDataError, StateError, UnknownNameError
from chunkstore.normalize import Standardize
from chunkstore.torch import WindowDataset, ZarrWindowDataset
from chunkstore.torch.device import DeviceArena

SIZES = (150, 40, 333, 8, 260, 0, 97, 512)
KINDS = ("owl", "wren", "owl", "owl", "tit", "owl", "wren", "tit")
W = 24
STARTS = {(s, p) for s, n in enumerate(SIZES) for p in range(n - W + 1)}


def places(batches, *, repeats=True):
    """Return (sequence, start) of every row."""
    out = []
    for batch in batches:
        keep = torch.ones(len(batch["start"]), dtype=torch.bool)
        if not repeats and "repeated" in batch:
            keep = ~batch["repeated"]
        out += zip(batch["sequence"][keep].tolist(), batch["start"][keep].tolist(), strict=True)
    return out


def assert_coded(batch):
    """Check that the first channel holds, obs for obs, what provenance says: the codes of the field x."""
    at = batch["start"][:, None] + torch.arange(W)
    assert torch.equal(batch["x"][:, 0], (batch["sequence"][:, None] * 1000 + at).float())


def test_a_batch_says_what_it_holds_and_where_it_came_from(store):
    dataset = ZarrWindowDataset(store, W, fields=["x", "v"], labels=["kind", "weight"], batch_size=32)
    batch = next(iter(dataset))
    assert batch["x"].shape == (32, 3, W)
    assert batch["x"].dtype == torch.float32
    assert dataset.channel_names == ("x", "v[0]", "v[1]")
    at = batch["start"][:, None] + torch.arange(W)
    assert torch.equal(batch["x"][:, 0], (batch["sequence"][:, None] * 1000 + at).float())
    assert torch.equal(batch["x"][:, 1], batch["sequence"][:, None].expand(-1, W).float())
    assert torch.equal(batch["x"][:, 2], at.float())
    assert batch["length"].tolist() == [W] * 32
    words = [dataset.categories("kind")[c] for c in batch["kind"].tolist()]
    assert words == [KINDS[s] for s in batch["sequence"].tolist()]
    assert torch.equal(batch["weight"], batch["sequence"].double())


@pytest.mark.parametrize("batch_size", [7, 64, 5000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_is_every_window_once(store, batch_size, shuffle):
    dataset = ZarrWindowDataset(store, W, batch_size=batch_size, shuffle=shuffle)
    batches = list(dataset)
    seen = places(batches)
    assert len(batches) == len(dataset)
    assert Counter(seen) == Counter(STARTS)
    assert (seen == sorted(seen)) is not shuffle


def test_a_dataloader_hands_batches_through(store):
    dataset = ZarrWindowDataset(store, W, batch_size=64)
    loader = DataLoader(dataset, batch_size=None)
    assert len(loader) == len(dataset)
    assert Counter(places(loader)) == Counter(STARTS)


class Wrapped(ZarrWindowDataset):
    def __iter__(self):
        return super().__iter__()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("kind", [ZarrWindowDataset, Wrapped])
@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}])
def test_a_dataloader_that_would_stack_batches_is_refused_with_the_remedy(store, kind, loader, options):
    with pytest.raises(ConfigError, match="DataLoader\\(dataset, batch_size=None\\)"):
        next(iter(loader(kind(store, W), **options)))


def test_who_collates_by_his_own_means_may_ask_for_several_batches(store):
    def lengths(batches):
        return [len(b["start"]) for b in batches]

    loader = DataLoader(ZarrWindowDataset(store, W, batch_size=8), batch_size=3, collate_fn=lengths)
    assert next(iter(loader)) == [8, 8, 8]


def test_every_iteration_has_an_order_of_its_own_and_an_epoch_can_be_named(store):
    dataset = ZarrWindowDataset(store, W, batch_size=64)
    epochs = [places(dataset) for _ in range(3)]
    assert len({tuple(e) for e in epochs}) == 3
    dataset.set_epoch(1)
    assert places(dataset) == epochs[1]
    other = ZarrWindowDataset(store, W, batch_size=64, seed=1)
    assert places(other) != epochs[0]


def test_peeking_begins_no_epoch(store):
    dataset = ZarrWindowDataset(store, W, batch_size=64)
    shown = dataset.peek()
    assert torch.equal(next(iter(dataset))["x"], shown["x"])


@pytest.mark.parametrize("channels", ["first", "last"])
def test_targets_are_cut_over_offset_and_length(store, channels):
    dataset = ZarrWindowDataset(
        store, W, fields="x", targets="x", target_length=5, batch_size=32, channels=channels
    )
    for batch in dataset:
        x, y = batch["x"], batch["y"]
        if channels == "last":
            x, y = x.transpose(1, 2), y.transpose(1, 2)
        assert y.shape[1:] == (1, 5)
        assert torch.equal(y[:, 0, 0], x[:, 0, -1] + 1)
        assert torch.equal(y[:, 0, 4], x[:, 0, -1] + 5)
    assert dataset.n_windows == sum(max(0, n - W - 5 + 1) for n in SIZES)


def test_a_label_is_a_target(store):
    dataset = ZarrWindowDataset(store, W, targets="kind", batch_size=32)
    batch = next(iter(dataset))
    assert batch["y"].dtype == torch.int64
    assert [dataset.categories("kind")[c] for c in batch["y"].tolist()] == [
        KINDS[s] for s in batch["sequence"].tolist()
    ]


@pytest.mark.parametrize(
    ("dtype", "fields", "expected", "factor"),
    [
        ("float32", "n", torch.float32, 0.5),
        ("float64", "n", torch.float64, 0.5),
        (None, "n", torch.int16, 1),
        (None, ["x", "n"], torch.float32, 1),
    ],
    ids=["scaled", "wider", "as stored", "promoted"],
)
def test_dtypes_follow_what_was_asked(store, dtype, fields, expected, factor):
    batch = next(iter(ZarrWindowDataset(store, W, fields=fields, dtype=dtype, batch_size=16)))
    assert batch["x"].dtype == expected
    at = batch["start"][:, None] + torch.arange(W)
    assert torch.equal(batch["x"][:, -1].double(), at.double() * factor)


def test_short_sequences_are_padded_with_zeros_and_length_says_so(store):
    dataset = ZarrWindowDataset(
        store, 100, fields="x", short="pad", sampling={"per_sequence": 1}, batch_size=16
    )
    (batch,) = list(dataset)
    assert sorted(batch["sequence"].tolist()) == [0, 1, 2, 3, 4, 6, 7]
    for x, sequence, start, length in zip(
        batch["x"][:, 0], batch["sequence"], batch["start"], batch["length"], strict=True
    ):
        n = min(100, SIZES[sequence])
        assert length == n
        assert torch.equal(x[:n], (sequence * 1000 + start + torch.arange(n)).float())
        assert not x[n:].any()


def test_normalising_takes_the_statistics_of_the_store_and_leaves_padding_zero(store):
    dataset = ZarrWindowDataset(
        store, 100, fields=["x", "n"], short="pad", normalize="store", batch_size=4096, shuffle=False
    )
    raw = ZarrWindowDataset(store, 100, fields=["x", "n"], short="pad", batch_size=4096, shuffle=False)
    (batch,), (plain,) = list(dataset), list(raw)
    values = {"x": store.read("x", 0, store.n_obs), "n": store.read("n", 0, store.n_obs) * 0.5}
    for channel, name in enumerate(("x", "n")):
        mean, std = values[name].astype("f8").mean(), values[name].astype("f8").std()
        expected = (plain["x"][:, channel].double() - mean) / std
        inside = torch.arange(100) < plain["length"][:, None]
        assert torch.allclose(batch["x"][:, channel].double()[inside], expected[inside], atol=1e-4)
        assert not batch["x"][:, channel][~inside].any()


@pytest.mark.parametrize(("offset", "length"), [(0, W), (W // 2, W), (W, 3)])
def test_padding_of_a_target_stays_zero_where_it_is_scaled(offset, length):
    with StoreWriter("memory://room", fields={"x": "f4"}, overwrite=True) as out:
        for number, size in enumerate((60, W + 2, W - 4, 5)):
            out.write(f"s{number}", {"x": np.arange(size) + 7}, labels={"room": f"kitchen {number}"})
    cut = {"targets": "x", "target_offset": offset, "target_length": length}
    options = {"short": "pad", "stride": 5, "labels": "room"} | cut
    plain = WindowDataset("memory://room", W, **options)
    scaled = WindowDataset("memory://room", W, normalize="store", normalize_targets="store", **options)
    (scale,) = scaled.recipe.y_scale.factor
    (shift,) = scaled.recipe.y_scale.shift
    want = plain.batch(range(len(plain)))["y"].numpy()
    want = np.where(want == 0, 0, want * scale + shift)
    got = scaled.batch(range(len(scaled)))
    assert np.allclose(got["y"], want, atol=1e-5)
    assert (got["room"] == got["sequence"]).all()
    served = ZarrWindowDataset(
        "memory://room", W, batch_size=len(want), normalize_targets="store", shuffle=False, **options
    )
    batch = next(iter(served))
    assert np.allclose(batch["y"], want, atol=1e-5)
    assert (batch["room"] == batch["sequence"]).all()


def test_a_transform_makes_the_batch_that_is_handed_out(store):
    dataset = ZarrWindowDataset(store, W, fields="x", batch_size=32, transform=Standardize())
    batch = next(iter(dataset))
    assert torch.allclose(batch["x"].mean(-1), torch.zeros(32, 1), atol=1e-3)
    assert "position" in batch


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_transform_that_raises_names_the_sequences(store, ahead):
    def broken(batch):
        raise ValueError("no")

    dataset = ZarrWindowDataset(store, W, batch_size=2, transform=broken, ahead=ahead, shuffle=False)
    with pytest.raises(ValueError, match="no") as caught:
        next(iter(dataset))
    assert "'s0' [0, 24), 's0' [1, 25)" in caught.value.__notes__[0]


def test_where_names_store_sequence_and_obs(store):
    dataset = ZarrWindowDataset(store, W, batch_size=8)
    batch = next(iter(dataset))
    where = dataset.where(batch)
    assert where.id == tuple(f"s{s}" for s in batch["sequence"].tolist())
    assert where.url == (store.url,) * 8
    assert (where.start == batch["start"].numpy()).all()
    assert (where.stop == batch["start"].numpy() + W).all()


def test_several_stores_act_as_one(two_paths):
    dataset = ZarrWindowDataset(two_paths, W, fields="x", labels="kind", batch_size=50)
    seen = []
    for batch in dataset:
        sequence = batch["sequence"] + 4 * batch["store"]
        seen += zip(sequence.tolist(), batch["start"].tolist(), strict=True)
        at = batch["start"][:, None] + torch.arange(W)
        assert torch.equal(batch["x"][:, 0], (sequence[:, None] * 1000 + at).float())
        words = [dataset.categories("kind")[c] for c in batch["kind"].tolist()]
        assert words == [("jay" if s == 4 else KINDS[s]) for s in sequence.tolist()]
        assert dataset.where(batch).id == tuple(f"s{s}" for s in sequence.tolist())
    assert Counter(seen) == Counter(STARTS)


def test_classes_are_drawn_equally_often(store):
    dataset = ZarrWindowDataset(
        store, W, labels="kind", sampling={"balance": "kind", "n": 6000}, batch_size=500
    )
    counts = Counter(c for batch in dataset for c in batch["kind"].tolist())
    assert sum(counts.values()) == 6000
    assert all(abs(n - 2000) < 300 for n in counts.values())  # 8 standard deviations


def test_stores_are_drawn_by_their_weights(two_paths):
    dataset = ZarrWindowDataset(two_paths, W, sampling={"stores": [3, 1], "n": 8000}, batch_size=500)
    counts = Counter(s for batch in dataset for s in batch["store"].tolist())
    assert sum(counts.values()) == 8000
    assert abs(counts[0] - 6000) < 310  # 8 standard deviations


def test_one_random_crop_of_each_recording_an_epoch(store):
    dataset = ZarrWindowDataset(store, W, sampling={"per_sequence": 1}, batch_size=4)
    epochs = [places(dataset) for _ in range(4)]
    for epoch in epochs:
        assert sorted(s for s, _ in epoch) == [0, 1, 2, 4, 6, 7]
        assert set(epoch) <= STARTS
    assert len({start for epoch in epochs for s, start in epoch if s == 7}) > 1


# ---- ranks


@settings(max_examples=20, deadline=None)
@given(
    world=st.sampled_from([1, 2, 3, 4]),
    batch=st.integers(1, 40),
    groups=st.sampled_from([1, 2]),
    drop=st.booleans(),
)
def test_ranks_share_an_epoch_in_equal_batches(store, world, batch, groups, drop):
    options = {
        "batch_size": batch, "lane_groups": groups, "drop_last": drop, "lanes": 24, "stride": 3, "ahead": 0,
    }  # fmt: skip
    ranks = [ZarrWindowDataset(store, W, rank=r, world_size=world, **options) for r in range(world)]
    batches = [list(d) for d in ranks]
    assert len({len(b) for b in batches}) == 1
    assert len(batches[0]) == len(ranks[0])
    for together in zip(*batches, strict=True):
        assert len({len(b["start"]) for b in together}) == 1
    seen = Counter(p for b in batches for p in places(b, repeats=False))
    wanted = Counter({(s, p) for s, p in STARTS if p % 3 == 0})
    if drop:
        assert not seen - wanted
        assert sum((wanted - seen).values()) < batch * world * groups
    else:
        assert seen == wanted


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"channels": "last", "fields": ["x", "v"]},
        {"targets": "x", "target_length": 2, "labels": ["kind"]},
        {"fields": "n", "dtype": None, "targets": "kind"},
        {"normalize": "store", "device": "cpu"},
    ],
    ids=["plain", "channels last", "targets", "integers", "on a device"],
)
@pytest.mark.parametrize("rank", [1, 3])
def test_rows_that_fill_up_a_first_batch_are_real_windows(store, options, rank):
    options = {"fields": "x", **options}
    n = ZarrWindowDataset(store, W, **options).n_windows
    size = next(b for b in range(200, n) if n % b == 3)  # leaves fewer draws than there are ranks
    alone = ZarrWindowDataset(store, W, batch_size=size, lanes=8, **options)
    *_, before, _ = alone
    state = alone.state_dict(before)
    last = next(iter(alone_again(store, state, batch_size=size, **options)))
    share = ZarrWindowDataset(store, W, batch_size=2, lanes=8, rank=rank, world_size=4, **options)
    share.load_state_dict(state)
    (batch,) = share
    assert batch["repeated"].all() == (rank == 3)
    (place,) = places([batch])
    assert place in places([last])
    row = places([last]).index(place)
    for key in last.keys() - {"position"}:
        assert torch.equal(batch[key][0], last[key][row]), key


def alone_again(store, state, **options):
    """Return a dataset of one rank that goes on from a state."""
    dataset = ZarrWindowDataset(store, W, lanes=8, **options)
    dataset.load_state_dict(state)
    return dataset


def test_a_rank_without_a_window_of_its_own_shows_those_of_others(store):
    # the only windows of 510 obs are the 3 of the longest sequence
    ranks = [ZarrWindowDataset(store, 510, fields="x", batch_size=4, rank=r, world_size=4) for r in range(4)]
    batches = [next(iter(dataset)) for dataset in ranks]
    assert [b["repeated"].tolist() for b in batches] == [[False]] * 3 + [[True]]
    for batch in batches:
        at = batch["start"][:, None] + torch.arange(510)
        assert torch.equal(batch["x"][:, 0], (batch["sequence"][:, None] * 1000 + at).float())


def test_a_borrowed_row_passes_over_chunks_that_cannot_be_read(tmp_path):
    place = tmp_path / "two.zarr"
    fields = [chunkstore.FieldSpec("x", "float32")]
    with chunkstore.StoreWriter(place, fields=fields, chunk=8, shard=8) as out:
        for number in range(2):
            out.write(f"s{number}", {"x": (number * 1000 + np.arange(40)).astype("f4")})
    options = {"fields": "x", "batch_size": 1, "world_size": 4, "lanes": 1, "shuffle": False}
    (place / "x" / "c" / "0").write_bytes(b"no shard")
    with pytest.raises(CorruptDataError):
        next(iter(ZarrWindowDataset(place, 40, rank=3, **options)))
    batch = next(iter(ZarrWindowDataset(place, 40, rank=3, on_bad_chunk="skip", **options)))
    assert places([batch]) == [(1, 0)]
    assert batch["x"][0, 0, -1] == 1039


def test_the_global_batch_is_the_same_for_every_number_of_ranks(store):
    def global_batches(world):
        ranks = [
            list(ZarrWindowDataset(store, W, batch_size=32 // world, rank=r, world_size=world, lanes=8))
            for r in range(world)
        ]
        return [sorted(places(batches, repeats=False)) for batches in zip(*ranks, strict=True)]

    assert global_batches(1) == global_batches(2) == global_batches(4)


# ---- states


def test_a_state_goes_through_json_and_resumes_behind_the_last_batch(store):
    options = {"batch_size": 64, "fields": "x"}
    dataset = ZarrWindowDataset(store, W, **options)
    whole = [places([b]) for b in dataset] + [places([b]) for b in dataset]
    dataset.set_epoch(0)
    for stop in (0, 1, 7):
        dataset.set_epoch(0)
        for number, _ in enumerate(dataset):
            if number == stop:
                state = json.loads(json.dumps(dataset.state_dict()))
                break
        again = ZarrWindowDataset(store, W, **options)
        again.load_state_dict(state)
        again.set_epoch(0)  # what a loop over epochs does
        rest = [places([b]) for b in again] + [places([b]) for b in again]
        assert rest == whole[stop + 1 :]


def test_the_state_of_a_batch_is_exact_however_far_one_has_fetched_ahead(store):
    dataset = ZarrWindowDataset(store, W, batch_size=64)
    fetched = list(dataset)
    state = dataset.state_dict(fetched[2])
    dataset.load_state_dict(state)
    assert places(dataset) == places(fetched[3:])
    assert dataset.state_dict()["epoch"] == 0


def test_a_state_at_the_end_of_an_epoch_leaves_nothing_of_it(store):
    dataset = ZarrWindowDataset(store, W, batch_size=64)
    list(dataset)
    state = dataset.state_dict()
    second = places(dataset)
    dataset.load_state_dict(state)
    assert places(dataset) == []
    assert places(dataset) == second


@settings(max_examples=15, deadline=None)
@given(data=st.data(), groups=st.sampled_from([1, 2]))
def test_a_checkpoint_goes_on_with_another_world_size_and_every_window_comes_once(store, data, groups):
    options = {"lane_groups": groups, "lanes": 8, "stride": 2, "seed": 3, "ahead": 0}
    left, seen = [4, 2, 1, 4], Counter()
    state = None
    for world in left:
        batch = data.draw(st.integers(1, 20), label="batch size")
        steps = data.draw(st.integers(0, 12), label="steps")
        ranks = [
            ZarrWindowDataset(store, W, batch_size=batch, rank=r, world_size=world, **options)
            for r in range(world)
        ]
        for dataset in ranks:
            if state is not None:
                dataset.load_state_dict(state)
        states = []
        for dataset in ranks:
            iterator = iter(dataset)
            for _, got in zip(range(steps), iterator, strict=False):
                seen.update(places([got], repeats=False))
                assert_coded(got)
            states.append(dataset.state_dict())
            iterator.close()
        assert all(s == states[0] for s in states)
        state = states[0]
    last = ZarrWindowDataset(store, W, batch_size=50, **options)
    last.load_state_dict(state)
    rest = list(last)
    for got in rest:
        assert_coded(got)
    seen.update(places(rest))
    assert seen == Counter({(s, p) for s, p in STARTS if p % 2 == 0})


@pytest.mark.parametrize("memory_limit", ["64MiB", 24 * 1024])
@pytest.mark.parametrize("groups", [1, 2])
def test_ranks_that_go_on_from_any_number_of_draws_read_what_they_show(store, groups, memory_limit):
    options = {"lane_groups": groups, "lanes": 8, "fields": "x", "memory_limit": memory_limit}
    for drawn in (1, 2, 3):  # none of them a whole number of rounds of four ranks
        alone = ZarrWindowDataset(store, W, batch_size=drawn, **options)
        state = alone.state_dict(next(iter(alone)))
        for rank in range(4):
            dataset = ZarrWindowDataset(store, W, batch_size=5, rank=rank, world_size=4, **options)
            dataset.load_state_dict(state)
            for batch in dataset:
                assert_coded(batch)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stride": 2}, "stride is 1 in the state, 2 here"),
        ({"seed": 5}, "seed is 0 in the state, 5 here"),
        ({"window": W + 1}, f"window is {W} in the state, {W + 1} here"),
        ({"lanes": 3}, "lanes is [0-9]+ in the state, 3 here"),
        ({"sampling": {"per_sequence": 1}}, "sampling is all in the state"),
    ],
)
def test_the_state_of_another_dataset_is_refused(store, options, named):
    state = ZarrWindowDataset(store, W, batch_size=64).state_dict()
    options = {"window": W, "batch_size": 64, **options}
    with pytest.raises(StateError, match=named):
        ZarrWindowDataset(store, options.pop("window"), **options).load_state_dict(state)


def test_a_state_is_refused_once_its_split_was_drawn_anew(tmp_path):
    path = str(tmp_path / "even.zarr")
    with StoreWriter(path, fields={"x": "f4"}) as out:
        for number in range(8):
            out.write(f"s{number}", {"x": np.full(10, number)})
    options = {"by": "sequence", "fractions": [0.5, 0.5]}
    chunkstore.open_store(path).add_split("train/val", seed=0, **options)
    dataset = ZarrWindowDataset(path, window=2, split="train")
    state = json.loads(json.dumps(dataset.state_dict()))
    dataset.load_state_dict(state)
    chunkstore.open_store(path).add_split("train/val", seed=1, overwrite=True, **options)
    anew = ZarrWindowDataset(path, window=2, split="train")
    assert len(anew) == len(dataset)  # as many windows, but others
    with pytest.raises(StateError, match="part is "):
        anew.load_state_dict(state)


def test_the_state_of_another_store_is_refused(store, two_paths):
    state = ZarrWindowDataset(two_paths[0], W, batch_size=64).state_dict()
    with pytest.raises(StateError, match="stores is"):
        ZarrWindowDataset(store, W, batch_size=64).load_state_dict(state)


def test_lanes_that_were_chosen_are_taken_from_the_state(store):
    small = ZarrWindowDataset(store, W, batch_size=64, lanes=4, passes=2)
    iterator = iter(small)
    rest_of_all = [places([b]) for b in iterator]
    small.set_epoch(0)
    next(iter(small))
    auto = ZarrWindowDataset(store, W, batch_size=64)
    auto.load_state_dict(small.state_dict())
    assert (auto.plan.lanes, auto.plan.passes) == (4, 2)
    assert [places([b]) for b in auto] == rest_of_all[1:]


def test_a_state_that_is_refused_changes_nothing(store):
    options = {"batch_size": 64, "memory_limit": 3000}
    want = places(ZarrWindowDataset(store, W, fields="x", **options))
    dataset = ZarrWindowDataset(store, W, fields="x", **options)
    others = ZarrWindowDataset(store, W, fields="x", **options | {"batch_size": 4, "seed": 5})
    foreign, own = others.state_dict(), dataset.state_dict()
    assert foreign["fingerprint"]["lanes"] != own["fingerprint"]["lanes"]
    damaged = [{"lanes": "many"}, {"lanes": 10**9}, {"blocks": [32]}, {"blocks": [32, 48]}, {"blocks": 5}]
    for state in [foreign, *({**own, "fingerprint": own["fingerprint"] | change} for change in damaged)]:
        with pytest.raises((ConfigError, StateError)):
            dataset.load_state_dict(json.loads(json.dumps(state)))
    for drawn in ([1, 2], [10**9], [1.5], ["3"], []):
        with pytest.raises(StateError, match="the state is damaged"):
            dataset.load_state_dict({**own, "drawn": drawn})
    assert places(dataset) == want


def test_a_second_state_is_taken_as_the_first_was(store):
    options = {"batch_size": 64, "fields": "x"}
    dataset = ZarrWindowDataset(store, W, **options)
    for lanes in (2, 8):
        other = ZarrWindowDataset(store, W, lanes=lanes, passes=1, **options)
        dataset.load_state_dict(other.state_dict())
        assert places(dataset) == places(other)


@pytest.mark.parametrize("made", [None, (1, 2), torch.zeros(3)])
@pytest.mark.parametrize("ahead", [0, "auto"])
def test_a_transform_that_returns_no_batch_is_told_what_is_expected(store, made, ahead):
    dataset = ZarrWindowDataset(store, W, transform=lambda _: made, ahead=ahead)
    with pytest.raises(ConfigError, match=f"transform returned {type(made).__name__} where the batch"):
        next(iter(dataset))


@pytest.mark.parametrize("dtype", ["U4", "object", "longdouble", ">f4", "datetime64[s]", "nope"])
@pytest.mark.parametrize("kind", [ZarrWindowDataset, WindowDataset])
def test_a_dtype_that_no_window_has_is_refused_at_the_door(store, dtype, kind):
    with pytest.raises(ConfigError, match="use 'float32', say, or None"):
        kind(store, W, dtype=dtype)


@pytest.mark.parametrize("normalize", ["normalize", "normalize_targets"])
def test_scaling_to_integers_is_refused(store, normalize):
    with pytest.raises(ConfigError, match="normalize needs floats"):
        ZarrWindowDataset(store, W, fields="x", targets="x", dtype="int32", **{normalize: "store"})


def test_a_state_of_something_that_is_no_batch_is_refused(store):
    with pytest.raises(StateError, match="no 'position'"):
        ZarrWindowDataset(store, W).state_dict({"x": torch.zeros(1)})


# ---- a clean life


def test_dropping_an_iterator_half_way_leaves_no_thread(store):
    before = set(threading.enumerate())
    dataset = ZarrWindowDataset(store, W, batch_size=16)
    iterator = iter(dataset)
    next(iterator)
    del iterator
    dataset.close()
    assert set(threading.enumerate()) <= before


def test_an_exception_in_the_loop_leaves_no_thread_and_the_dataset_usable(store):
    before = set(threading.enumerate())
    dataset = ZarrWindowDataset(store, W, batch_size=16)

    def loop():
        for _ in dataset:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    dataset.close()
    assert set(threading.enumerate()) <= before
    assert Counter(places(dataset)) == Counter(STARTS)


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [
        {"targets": "x", "target_length": 2},
        {"window": 100, "short": "pad", "normalize": "store", "labels": "kind"},
        {"channels": "last", "fields": ["v", "n"]},
        {"memory_limit": "12kB", "lanes": 4},
        {"rank": 1, "world_size": 2, "lanes": 8, "dtype": None, "fields": "n"},
    ],
    ids=["targets", "padded", "channels last", "slots", "a rank"],
)
def test_windows_cut_on_a_torch_device_are_the_same(store, device, options):
    options = {"window": W, "fields": ["x", "n", "v"], "batch_size": 64, **options}
    window = options.pop("window")
    plain = ZarrWindowDataset(store, window, **options)
    there = ZarrWindowDataset(store, window, device=device, **options)
    for _ in range(2):
        for a, b in zip(plain, there, strict=True):
            assert b["x"].device.type == device
            assert a.keys() == b.keys()
            assert all(torch.allclose(a[k], b[k].cpu(), atol=1e-5) for k in a)


def test_what_lies_on_a_device_goes_with_the_arrays_that_it_mirrors():
    arena = DeviceArena(torch.device("cpu"))
    for n in (4, 8, 4):  # as a loader that is opened again
        array = arena((n,), "f4")
        array[:] = n
        part = array[1:]
        arena.loaded(array, 0, n)
        assert len(arena._mirrors) == 1
        del array
        assert len(arena._mirrors) == 1  # a part of it is still held
        del part
    assert not arena._mirrors


# ---- what cannot be


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"fields": "rain"}, UnknownNameError, "no field 'rain'; it has x, n, v"),
        ({"labels": "fish"}, UnknownNameError, "no label 'fish'"),
        ({"targets": "fish"}, UnknownNameError, "no field or label is named 'fish'"),
        ({"batch_size": 0}, ConfigError, "batch_size must be 1 or more"),
        ({"channels": "middle"}, ConfigError, "channels must be 'first' or 'last'"),
        ({"rank": 3, "world_size": 2}, ConfigError, "rank 3 of world_size 2"),
        ({"normalize": "store", "dtype": None, "fields": "n"}, ConfigError, "normalize needs floats"),
        ({"sampling": {"balance": "kind", "m": 1}}, ConfigError, "sampling="),
        ({"sampling": {"stores": [1, 2]}}, ConfigError, "give 1 numbers"),
        ({"split": "train"}, UnknownNameError, "train"),
        ({"device": "nope"}, ConfigError, r"device='nope' cannot hold tensors here.*'cpu'"),
        ({"device": "cuda:99"}, ConfigError, r"device='cuda:99' cannot hold tensors here"),
        ({"device": "cpu:x"}, ConfigError, r"torch says: "),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(store, options, error, text):
    with pytest.raises(error, match=text):
        len(ZarrWindowDataset(store, W, **{"batch_size": 8, **options}))


def test_a_window_longer_than_every_sequence_is_refused_with_both_numbers(store):
    with pytest.raises(ConfigError, match=r"1000 obs.*512"):
        len(ZarrWindowDataset(store, 1000))


def test_no_store_at_all_is_refused():
    with pytest.raises(ConfigError, match="no store"):
        ZarrWindowDataset([], W)


def test_the_names_are_public():
    assert chunkstore.ZarrWindowDataset is ZarrWindowDataset
    assert np.all([hasattr(chunkstore, n) for n in ("WindowDataset", "ZarrWindowDataset")])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"window": 2.5}, "window must be a whole number, got 2.5"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"dtype": "float31"}, "numpy has no dtype 'float31'"),
        ({"transform": 3}, "transform must be a function"),
        ({"stores": 3}, "stores must be a path"),
        ({"stores": None}, "stores must be a path"),
    ],
)
def test_what_is_of_the_wrong_kind_is_refused_by_name(store, options, named):
    options = {"stores": store, "window": W, **options}
    with pytest.raises(ConfigError, match=named):
        ZarrWindowDataset(options.pop("stores"), options.pop("window"), **options)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"split": "nope"}, UnknownNameError, "nope"),
        ({"window": 10**6}, ConfigError, "1000000 obs"),
        ({"memory_limit": "1kB"}, ConfigError, "memory_limit is 1000 bytes"),
        ({"sampling": "zzz"}, ConfigError, "zzz"),
    ],
)
def test_what_cannot_work_is_said_when_the_dataset_is_made(store, given, error, told):
    options = {"window": W, "batch_size": 8} | given
    with pytest.raises(error, match=told):
        ZarrWindowDataset(store, **options)


def test_classes_that_are_numbers_are_balanced_whatever_their_sign():
    with StoreWriter("memory://dataset-signs", {"x": "f4"}, overwrite=True) as out:
        for i in range(9):
            out.write(f"s{i}", {"x": np.arange(8)}, columns={"side": -1 if i else 1})
    dataset = ZarrWindowDataset(
        "memory://dataset-signs", 4, labels="side", sampling={"balance": "side", "n": 1000}, batch_size=100
    )
    sides = np.concatenate([b["side"].numpy() for b in dataset])
    assert set(sides.tolist()) == {-1, 1}
    assert abs(int((sides == 1).sum()) - 500) < 100


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("channels", ["first", "last"])
def test_fields_of_half_precision_make_windows(dtype, channels):
    with StoreWriter("memory://dataset-half", {"a": "f2", "b": "f2", "v": "3f2"}, overwrite=True) as out:
        values = np.arange(12, dtype="f2")
        out.write("s", {"a": values, "b": -values, "v": np.stack([values, values + 1, values + 2], 1)})
    for fields in (["a", "b"], ["v", "a"]):
        batch = next(
            iter(
                ZarrWindowDataset(
                    "memory://dataset-half", 4, fields=fields, shuffle=False, dtype=dtype, channels=channels
                )
            )
        )
        x = batch["x"].numpy() if channels == "first" else batch["x"].numpy().swapaxes(1, 2)
        starts = np.arange(len(x))[:, None] + np.arange(4)
        want = [starts, -starts] if fields[0] == "a" else [starts, starts + 1, starts + 2, starts]
        assert np.array_equal(x, np.stack(want, 1))


@pytest.mark.parametrize("kind", [np.asarray, pd.Series, torch.as_tensor, list])
def test_a_state_knows_all_weights_whatever_holds_them(tmp_path, kind):
    """What is printed of a long series or tensor leaves out its middle."""
    with StoreWriter(tmp_path / "s.zarr", fields={"x": "f4"}) as out:
        for number in range(2000):
            out.write(f"s{number}", {"x": np.zeros(2)})
    weights, others = np.ones(2000), np.ones(2000)
    others[1000] = 50.0

    def made(values):
        sampling = {"weights": kind(values), "n": 500}
        return ZarrWindowDataset(tmp_path / "s.zarr", 2, batch_size=10, sampling=sampling)

    state = made(weights).state_dict()
    made(weights).load_state_dict(state)
    with pytest.raises(StateError, match="sampling is"):
        made(others).load_state_dict(state)
