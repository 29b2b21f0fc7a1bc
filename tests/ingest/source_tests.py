"""One suite that every source passes: subclass :class:`SourceTests` and give it inputs.

::

    class TestMySource(SourceTests):
        source = "mypackage.module:MySource"
        options = {"field": "x"}

        def inputs(self, folder):
            ...  # write a few small files and return their paths

A source that passes can be ingested by any number of workers, killed and resumed.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import chunkstore
import ingest
from chunkstore.errors import ChunkstoreError
from ingest.inputs import expand
from ingest.protocol import Batch, Fault, Scan, Source
from ingest.rows import has_mask, mask_name
from ingest.sources import open_source


class SourceTests:
    """What the engine takes for granted of a source."""

    source: str
    """Name for ``open_source``."""
    options: ClassVar[dict] = {}
    """Options of the source, JSON values."""

    def inputs(self, folder: Path) -> list[str]:
        """Write some inputs into a folder, and return their paths."""
        raise NotImplementedError

    @pytest.fixture
    def files(self, tmp_path):
        folder = tmp_path / "in"
        folder.mkdir()
        given = self.inputs(folder)
        made = open_source(self.source, self.options)
        return expand(given, tuple(getattr(made, "suffixes", ())))

    @pytest.fixture
    def opened(self):
        return open_source(self.source, self.options)

    @pytest.fixture
    def scan(self, opened, files):
        return opened.scan(files)

    def again(self, scan):
        """The source as a worker makes it: from the scan's options, through JSON."""
        return open_source(self.source, json.loads(json.dumps(dict(scan.options))))

    def test_it_is_a_source(self, opened):
        assert isinstance(opened, Source)
        assert isinstance(opened.name, str)

    def test_options_survive_json_and_pickling(self, scan):
        assert isinstance(scan, Scan)
        assert self.again(scan).name == open_source(self.source, self.options).name
        pickle.loads(pickle.dumps(tuple(scan.parts)))
        for part in scan.parts:
            json.dumps(part.payload)

    def test_parts_are_numbered_and_stand_in_their_order(self, scan):
        assert [p.index for p in scan.parts] == list(range(len(scan.parts)))
        assert all(p.nbytes >= 0 and p.claimed >= -1 and p.memory > 0 for p in scan.parts)

    def test_two_scans_are_equal(self, opened, files, scan):
        other = opened.scan(files)
        assert [p.payload for p in other.parts] == [p.payload for p in scan.parts]
        assert other.fields == scan.fields
        assert other.keys == scan.keys

    def test_identity_is_that_of_the_scan(self, scan):
        source = self.again(scan)
        assert all(source.identity(p.file) == p.identity for p in scan.parts)

    def test_identity_changes_with_the_file(self, scan):
        source = self.again(scan)
        part = scan.parts[0]
        with Path(part.file).open("ab") as out:
            out.write(b"more")
        assert source.identity(part.file) != part.identity

    def test_placed_parts_state_their_sequence_and_rows(self, scan):
        if not scan.placed:
            pytest.skip("this source finds its sequences while reading")
        assert all(p.claimed >= 0 and 0 <= p.sequence < len(scan.keys) for p in scan.parts)
        assert len(set(scan.keys)) == len(scan.keys)

    def test_batches_are_what_the_scan_promised(self, scan):
        source = self.again(scan)
        promised = {f.name: f for f in scan.fields}
        for part in scan.parts:
            rows = 0
            for batch in source.read(part):
                assert isinstance(batch, Batch)
                rows += batch.rows
                for name, values in batch.columns.items():
                    if name in promised:
                        assert values.shape == promised[name].shape(batch.rows)
                        assert np.can_cast(values.dtype, promised[name].np_dtype, "safe")
                for spec in promised.values():
                    mask = batch.columns.get(mask_name(spec.name))
                    assert mask is None or (mask.shape[0] == batch.rows and has_mask(spec))
                if batch.codes is not None and batch.rows:
                    assert batch.codes.shape == (batch.rows,)
                    assert 0 <= batch.codes.min() <= batch.codes.max() < len(batch.keys)
                if batch.rows and not scan.placed:
                    assert batch.keys
                for values in batch.labels.values():
                    assert len(values) == max(1, len(batch.keys))
                    json.dumps(values)
                for low, high in batch.lost:
                    assert 0 <= low < high <= batch.rows
                assert all(isinstance(f, Fault) for f in batch.faults)
            if scan.placed:
                assert rows == part.claimed

    def test_reading_twice_gives_the_same(self, scan):
        source = self.again(scan)
        for part in scan.parts:
            for a, b in zip(source.read(part), source.read(part), strict=True):
                assert (a.rows, a.keys, a.lost) == (b.rows, b.keys, b.lost)
                for name, values in a.columns.items():
                    np.testing.assert_array_equal(values, b.columns[name])

    def test_a_part_needs_no_other_part_read_before(self, scan):
        source = self.again(scan)
        last = scan.parts[len(scan.parts) - 1]
        for part in scan.parts:
            list(source.read(part))
        fresh = self.again(scan)
        for a, b in zip(source.read(last), fresh.read(last), strict=True):
            for name, values in a.columns.items():
                np.testing.assert_array_equal(values, b.columns[name])

    def test_rows_in_are_rows_stored_or_lost(self, files, tmp_path):
        result = self.run(files, tmp_path / "o.zarr")
        for own in result.report["files"]:
            assert own["rows_in"] == own["stored"] + own["gap"] + own["quarantined"]
        assert "rows-unaccounted" not in result.report["faults"]
        rows = result.report["rows"]
        assert rows["stored"] + rows["gap"] == chunkstore.open_store(tmp_path / "o.zarr").n_obs

    def test_the_way_the_work_is_cut_changes_nothing(self, files, tmp_path, monkeypatch):
        self.run(files, tmp_path / "a.zarr", chunk=8, shard=32)
        monkeypatch.setattr("ingest.plan.SEGMENT", 512)
        monkeypatch.setattr("ingest.plan.stage_target", lambda total: 1)
        self.run(files, tmp_path / "b.zarr", chunk=8, shard=32)
        assert self.tree(tmp_path / "a.zarr") == self.tree(tmp_path / "b.zarr")

    def test_a_file_of_zeros_and_an_empty_one_are_named_not_fatal(self, files, tmp_path):
        folder = Path(files[0]).parent
        suffix = Path(files[0]).suffix
        (folder / f"zeros{suffix}").write_bytes(bytes(64))
        (folder / f"empty{suffix}").write_bytes(b"")
        given = [*files, str(folder / f"zeros{suffix}"), str(folder / f"empty{suffix}")]
        result = self.run(given, tmp_path / "o.zarr")
        clean = self.run(files, tmp_path / "clean.zarr")
        assert result.report["rows"]["stored"] == clean.report["rows"]["stored"]
        assert set(result.report["faults"]) >= set(clean.report["faults"])
        assert sum(result.report["faults"].values()) > sum(clean.report["faults"].values())

    def test_no_inputs_are_an_error_in_one_sentence(self, opened):
        with pytest.raises(ChunkstoreError):
            opened.scan([])

    def run(self, files, out, **how):
        return ingest.ingest(self.source, files, out, self.options, **{"workers": 0, **how})

    @staticmethod
    def tree(folder):
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
