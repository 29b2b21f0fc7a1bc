"""Files whose schemas are later and earlier versions of one: every row keeps its values."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.errors import ConfigError, InputError
from ingest.sources.avro import AvroSource

DECODERS = pytest.mark.parametrize("decoder", ["kernel", "fastavro"])


def rec(*fields, name="R"):
    """A record of (name, type) or (name, type, aliases)."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f[0], "type": f[1], **({"aliases": f[2]} if f[2:] else {})} for f in fields],
    }


def write(folder, avro, *files):
    """Write (schema, records) each to a file of its own, in their order."""
    paths = []
    for i, (schema, records) in enumerate(files):
        paths.append(folder / f"{i}.avro")
        paths[-1].write_bytes(avro.bytes(schema, records))
    return paths


# ------------------------------------------------------------ random versions of random schemas

WIDER = {"int": ["long", "double"], "float": ["double"]}


class Versions:
    """Random schemas, schemas that they may have been before or become, and values of them."""

    def __init__(self, draw):
        self.r, self.count = draw, 0

    def fresh(self, letter):
        self.count += 1
        return f"{letter}{self.count}"

    def record(self, depth=0):
        fields = [(self.fresh("f"), self.kind(depth)) for _ in range(self.r.randint(1, 4))]
        return rec(*fields, name=self.fresh("R"))

    def kind(self, depth):
        simple = ["int", "long", "float", "double", "boolean", "string", ["null", "int"], ["double", "null"]]
        symbols = [f"s{i}" for i in range(self.r.randint(1, 9))]
        more = [
            ["null", "int", "long"],
            {"type": "array", "items": self.r.choice(["int", "double", "float"])},
            {"type": "enum", "name": self.fresh("E"), "symbols": symbols},
            {"type": "fixed", "name": self.fresh("F"), "size": 3},
        ]
        if depth < 2 and self.r.random() < 0.1:
            return self.record(depth + 1)
        return self.r.choice([*simple, *more])

    def other(self, schema):
        """Another version: fields left out, added, moved, renamed and widened; types renamed."""
        if isinstance(schema, str):
            if self.r.random() < 0.3:
                schema = self.r.choice(WIDER.get(schema, [schema]))
            return self.r.choice([schema] * 5 + [["null", schema], [schema, "null"]])
        out = copy.deepcopy(schema)
        if isinstance(out, list):
            self.r.shuffle(out)
            return out
        if out["type"] == "array":
            out["items"] = self.r.choice([out["items"], *WIDER.get(out["items"], [])])
            return out
        out["name"] += self.r.choice(["", "", "", "x"])
        if out["type"] == "enum" and self.r.random() < 0.6:
            symbols = [s for s in out["symbols"] if s != "z"]
            self.r.shuffle(symbols)
            out["symbols"] = [*symbols[: self.r.randint(1, 9)], "z"]
        if out["type"] == "record":
            out["fields"] = [f for f in out["fields"] if self.r.random() > 0.15]
            for f in out["fields"]:
                f["type"] = self.other(f["type"])
                if self.r.random() < 0.1:
                    f["aliases"], f["name"] = [f["name"]], f["name"] + "n"
            if self.r.random() < 0.3:
                out["fields"].append({"name": self.fresh("g"), "type": "long"})
            self.r.shuffle(out["fields"])
            out["namespace"] = self.r.choice(["", "", "ns"])
        return out

    def value(self, kind):
        r = self.r
        if isinstance(kind, list):
            return self.value(r.choice(kind))
        if isinstance(kind, dict):
            if kind["type"] == "enum":
                return r.choice(kind["symbols"])
            if kind["type"] == "fixed":
                return bytes(r.randint(0, 255) for _ in range(3))
            if kind["type"] == "array":
                return [self.value(kind["items"]) for _ in range(2)]
            return {f["name"]: self.value(f["type"]) for f in kind["fields"]}
        return {
            "null": None,
            "int": r.randint(-(1 << 31), (1 << 31) - 1),
            "long": r.randint(-(1 << 63), (1 << 63) - 1),
            "float": float(np.float32(r.random())),
            "double": r.random(),
            "boolean": r.random() < 0.5,
            "string": "text",
        }[kind]


def at_path(record, path):
    for step in path.split("."):
        record = record.get(step) if isinstance(record, dict) else None
    return record


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 32))
@DECODERS
def test_every_row_of_every_version_is_stored_with_its_values(avro, tmp_path_factory, decoder, seed):
    draw = random.Random(seed)
    versions = Versions(draw)
    schemas = [versions.record()]
    schemas += [versions.other(draw.choice(schemas)) for _ in range(draw.randint(1, 3))]
    draw.shuffle(schemas)
    files = [(schema, [versions.value(schema) for _ in range(3)]) for schema in schemas]
    paths = write(tmp_path_factory.mktemp("versions"), avro, *files)
    try:
        got = avro.read(paths, sequence_per="file", on_drift="union", decoder=decoder)
    except (ConfigError, InputError) as error:  # nothing but text; a long in one file and a double in another
        if "no field is left" in str(error) or "no type holds both" in str(error):
            return
        raise
    assert not got.faults
    every = [record for _, records in files for record in records]
    assert got.rows == len(every)
    for field in got.scan.fields:
        path, values = field.attrs.get("avro_path", field.name), got.columns[field.name]
        for at, record in enumerate(every):
            value = at_path(record, path)
            if value is None:
                continue
            want = field.categories.index(value) if field.categories else value
            want = list(want) if isinstance(want, bytes) else want
            assert np.array_equal(values[at], np.asarray(want).astype(values.dtype)), path
            assert not field.nullable or got.columns[f"{field.name}_valid"][at], path


# ------------------------------------------------------------ single cases


@DECODERS
@pytest.mark.parametrize("turned", [False, True])
def test_a_record_that_holds_itself_may_differ_between_files(avro, tmp_path, decoder, turned):
    first = rec(("v", "long"), ("next", ["null", "R"]), ("p", "long"))
    second = rec(("v", "long"), ("next", ["null", "R"]), ("q", "long"))
    files = [
        (first, [{"v": 1, "next": {"v": 8, "next": None, "p": 7}, "p": 3}]),
        (second, [{"v": 2, "next": {"v": 9, "next": None, "q": 6}, "q": 4}]),
    ]
    paths = write(tmp_path, avro, *(files[::-1] if turned else files))
    got = avro.read(paths, sequence_per="all", on_drift="union", decoder=decoder)
    assert not got.faults
    assert sorted(got.columns["v"].tolist()) == [1, 2]
    assert {f.name for f in got.scan.fields} == {"v", "p", "q"}
    assert "recursive" in got.scan.attrs["avro_fields_left"]["next"]


@DECODERS
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("old", "value", "new", "want"),
    [
        ("long", 1, "long", 1),
        ("double", 1.5, "int", 1.5),  # what a field takes by its alias, it holds
        ("string", "text", "long", None),  # another field, which once had that name
        ("double", 1.5, "long", None),
    ],
)
def test_an_alias_in_one_file_costs_no_row_of_another(avro, tmp_path, decoder, turned, old, value, new, want):
    files = [
        (rec(("b", old), ("a", "int")), [{"b": value, "a": 1}]),
        (rec(("c", new, ["b"]), ("a", "int")), [{"c": 5, "a": 2}]),
    ]
    paths = write(tmp_path, avro, *(files[::-1] if turned else files))
    got = avro.read(paths, sequence_per="all", on_drift="union", decoder=decoder)
    assert not got.faults
    rows = {int(a): at for at, a in enumerate(got.columns["a"])}
    assert got.columns["c"][rows[2]] == 5
    valid = got.columns.get("c_valid", ~np.isnan(got.columns["c"].astype(float)))
    assert bool(valid[rows[1]]) == (want is not None)
    assert want is None or got.columns["c"][rows[1]] == want


def test_symbols_that_differ_behind_the_first_six_are_drift_too(avro, tmp_path):
    symbols = list("abcdefgh")

    def enum(names):
        return rec(("e", {"type": "enum", "name": "E", "symbols": names}))

    paths = write(
        tmp_path,
        avro,
        (enum(symbols), [{"e": "g"}]),
        (enum([*symbols[:6], "z", "h"]), [{"e": "z"}]),
        (enum([*symbols, "i"]), [{"e": "i"}]),
    )
    with pytest.raises(
        InputError, match=r"e: enum\(\.\.\., g, h\) in 1 file, enum\(\.\.\., z, h\) in 1 file"
    ):
        AvroSource(sequence_per="all").scan([str(p) for p in paths])
    got = avro.read(paths, sequence_per="all", on_drift="union")
    (field,) = got.scan.fields
    assert [field.categories[code] for code in got.columns["e"]] == ["g", "z", "i"]
    with pytest.raises(InputError, match=r"enum\(\.\.\.\) in 1 file, enum\(\.\.\., i\) in 1 file"):
        AvroSource(sequence_per="all").scan([str(paths[0]), str(paths[2])])
