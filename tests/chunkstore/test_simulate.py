"""An epoch played without reading says what reading it would do."""

from __future__ import annotations

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import chunkstore
from chunkstore.commands import register
from chunkstore.loader import WindowLoader
from chunkstore.simulate import simulate
from chunkstore.windows import WindowSpec


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("simulate") / "s.zarr"
    rng = np.random.default_rng(0)
    with chunkstore.StoreWriter(str(path), fields={"x": "f4", "y": "f4"}, chunk=64, shard=512) as out:
        for q, n in enumerate((3000, 700, 1500, 40)):
            out.write(f"s{q}", {"x": rng.random(n, "f4"), "y": rng.random(n, "f4")})
    return chunkstore.open_store(str(path))


@pytest.mark.parametrize("options", [{}, {"memory_limit": 12_000}, {"memory_limit": 12_000, "passes": 4}])
def test_it_reads_as_much_as_an_epoch_that_is_really_read(store, options):
    found = simulate(store, 16, batch_size=32, fields=["x"], **options)
    with WindowLoader(store, WindowSpec(16), batch_size=32, fields=["x"], **options) as loader:
        batches = list(loader.batches(0))
        really = loader.counters
    assert found.windows == sum(len(b["x"]) for b in batches)
    assert found.batches == len(batches)
    assert found.exact
    # how far ahead threads are when a block leaves decides whether it would have been found again
    assert really.loads == pytest.approx(found.loads, rel=0.2, abs=5)
    assert really.bytes_decoded == pytest.approx(found.decoded_bytes, rel=0.2, abs=5000)
    assert found.arena_bytes == loader.plan.arena_bytes
    assert found.stored_bytes > 0


def test_it_counts_distinct_blocks_and_sequences_as_the_batches_have_them(store):
    options = {"batch_size": 32, "fields": ["x"], "memory_limit": 12_000, "drop_last": True}
    found = simulate(store, 16, **options)
    with WindowLoader(store, WindowSpec(16), **options) as loader:
        block = loader.plan.block_of(64)
        blocks, sequences = [], []
        for b in loader.batches(0):
            at = store.sequences.offsets[b["sequence"]] + b["start"]
            blocks.append(len(np.unique(at // block)))
            sequences.append(len(np.unique(b["sequence"])))
    assert found.distinct_blocks.mean == pytest.approx(np.mean(blocks))
    assert found.distinct_blocks.min == min(blocks)
    assert found.distinct_sequences.mean == pytest.approx(np.mean(sequences))
    share = np.array([2985, 685, 1485, 25]) / 5180  # windows of each sequence
    assert found.distinct_sequences.perfect == pytest.approx((1 - (1 - share) ** 32).sum(), abs=0.1)


def test_passes_spread_blocks_over_the_epoch_and_read_more(store):
    one, four = (
        simulate(store, 16, batch_size=32, fields=["x"], memory_limit=6_000, lanes=8, passes=p)
        for p in (1, 4)
    )
    assert one.spread < 0.5 < four.spread <= four.spread_perfect
    assert four.decoded_bytes > 2 * one.decoded_bytes


def test_without_shuffling_a_batch_holds_few_blocks(store):
    found = simulate(store, 16, batch_size=32, fields=["x"], shuffle=False)
    assert found.distinct_blocks.mean < 3


def test_it_is_json_and_text(store):
    found = simulate(store, 16, stride=8, batch_size=8, sampling="per_sequence=2")
    assert json.loads(json.dumps(found.to_json()))["windows"] == 8
    assert "perfect shuffle" in found.to_text()


def test_the_command_prints_lines_or_json(store):
    app = typer.Typer()
    register(app)
    arguments = ["simulate", store.url, "--window", "16", "--batch-size", "8", "--field", "y"]
    lines = CliRunner().invoke(app, arguments)
    assert lines.exit_code == 0, lines.output
    assert "windows in" in lines.output
    data = CliRunner().invoke(app, [*arguments, "--json", "--lanes", "4", "--passes", "2"])
    assert json.loads(data.output)["plan"]["passes"] == 2
