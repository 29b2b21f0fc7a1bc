"""Labels of several stores under one dictionary, and weights that balance classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import ConfigError, UnknownNameError
from chunkstore.labels import balance_weights, label_column


class Table:
    """The part of a sequence table that labels are read from."""

    def __init__(self, units=None, **columns):
        self._columns, self.units = columns, units
        self.columns = tuple(columns)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def column(self, name):
        values = self._columns[name]
        return np.array(values, object if isinstance(values[0], str) else None)

    def categories(self, name):
        return tuple(dict.fromkeys(self._columns[name]))  # in no order that is shared

    def attrs(self, name):
        return {} if self.units is None else {"units": self.units}

    def codes(self, name):
        words = self.categories(name)
        return np.array([words.index(v) for v in self._columns[name]], np.int32)


words = st.lists(st.sampled_from(["owl", "wren", "tit", "crow"]), min_size=1, max_size=6)


@given(st.lists(words, min_size=1, max_size=4))
def test_codes_of_all_stores_stand_for_the_same_words(stores):
    column = label_column([Table(bird=s) for s in stores], "bird")
    for at, labels in enumerate(stores):
        rows = np.arange(len(labels))
        codes = column.take(np.full(len(labels), at), rows)
        assert [column.categories[c] for c in codes] == labels


def test_numbers_stay_numbers():
    column = label_column([Table(rate=[1.5, 2.0]), Table(rate=[3.0])], "rate")
    assert column.categories is None
    assert column.values.tolist() == [1.5, 2.0, 3.0]
    assert label_column([Table(n=[True, False])], "n").values.dtype == np.int64


def test_an_unknown_label_is_named_with_those_there_are():
    with pytest.raises(UnknownNameError, match="'fish' along its sequences; it has: bird"):
        label_column([Table(bird=["owl"])], "fish")


def test_text_and_numbers_are_not_mixed():
    with pytest.raises(ConfigError, match="text in some stores"):
        label_column([Table(a=["x"]), Table(a=[1])], "a")


def test_numbers_of_other_units_are_not_mixed():
    metres, feet, unknown = (Table(height=[1.0], units=u) for u in ("m", "ft", None))
    assert label_column([metres, unknown, metres], "height").values.tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match="in 'm' and 'ft'"):
        label_column([metres, unknown, feet], "height")


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=50).filter(lambda c: max(c) >= 0))
def test_balanced_weights_give_every_class_the_same_share(codes):
    weights = balance_weights(codes)
    codes = np.array(codes)
    shares = {c: weights[codes == c].sum() for c in set(codes[codes >= 0].tolist())}
    assert np.allclose(list(shares.values()), 1 / len(shares))
    assert (weights[codes < 0] == 0).all()


def test_no_class_at_all_is_refused():
    with pytest.raises(ConfigError, match="no sequence has a class"):
        balance_weights([-1, -1])
