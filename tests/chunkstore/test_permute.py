"""Keyed permutations: bijections, random access, no visible structure."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.errors import ConfigError
from chunkstore.permute import MAX_N, derive_key, mix_keys, permutation, permute_many

keys = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("n", [*range(1, 130), 255, 256, 257, 4095, 4096, 4097, 50_000])
def test_it_is_a_bijection_of_every_small_domain(n):
    for key in range(3):
        image = permutation(n, key).apply(np.arange(n))
        assert (np.sort(image) == np.arange(n)).all()


@given(n=st.integers(1, MAX_N), key=keys, data=st.data())
@settings(max_examples=200)
def test_the_inverse_takes_every_value_back(n, key, data):
    x = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    p = permutation(n, key)
    y = p.apply(x)
    assert ((y >= 0) & (y < n)).all()
    assert (p.inverse(y) == x).all()


@given(n=st.integers(1, 10_000), key=keys, data=st.data())
def test_one_value_alone_is_what_it_is_among_others(n, key, data):
    p = permutation(n, key)
    x = data.draw(st.integers(0, n - 1))
    assert p(x) == p.apply(np.arange(n))[x]


@given(st.lists(st.tuples(st.integers(1, MAX_N), keys), min_size=1, max_size=30), st.data())
def test_many_domains_and_keys_in_one_call_equal_each_alone(pairs, data):
    x = [data.draw(st.integers(0, n - 1)) for n, _ in pairs]
    got = permute_many(
        np.array(x, np.int64),
        np.array([n for n, _ in pairs], np.int64),
        np.array([k for _, k in pairs], np.uint64),
    )
    assert got.tolist() == [permutation(n, k)(i) for i, (n, k) in zip(x, pairs, strict=True)]


def test_all_orders_of_five_values_are_about_equally_frequent():
    orders, counts = np.unique(
        [permutation(5, (k, "order")).apply(np.arange(5)) for k in range(24_000)], axis=0, return_counts=True
    )
    assert len(orders) == 120
    # 200 expected of each; 6 standard deviations of a binomial
    assert np.abs(counts - 200).max() < 6 * np.sqrt(200)


def test_neighbours_are_thrown_as_far_apart_as_in_a_random_order():
    n = 3_000_000
    image = permutation(n, 11).apply(np.arange(200_000))
    gap = np.abs(np.diff(image)).mean()
    assert gap == pytest.approx(n / 3, rel=0.01)  # the mean distance of two uniform places is a third


def test_places_are_uniform_and_neighbours_independent():
    n, cells = 2**40 + 12345, 20
    image = permutation(n, 5).apply(np.arange(100_001))
    at = (image * cells // n).astype(int)
    pairs = np.bincount(at[:-1] * cells + at[1:], minlength=cells * cells)
    expected = 100_000 / cells**2
    chi = ((pairs - expected) ** 2 / expected).sum()
    assert chi < cells**2 + 6 * np.sqrt(2 * cells**2)  # mean and deviation of a chi-square


def test_keys_that_differ_in_one_bit_give_unrelated_orders():
    n = 10_007
    a = permutation(n, 1 << 40).apply(np.arange(n))
    b = permutation(n, (1 << 40) + 1).apply(np.arange(n))
    assert np.abs(np.corrcoef(a, b)[0, 1]) < 0.05
    assert (a == b).sum() < 12


def test_the_same_key_gives_the_same_order_in_another_process():
    code = (
        "from chunkstore.permute import permutation as p; print(p(1000, (7, 'x')).apply(range(9)).tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(permutation(1000, (7, "x")).apply(range(9)).tolist())


def test_a_domain_outside_its_range_is_refused():
    for n in (0, -3, MAX_N + 1):
        with pytest.raises(ConfigError, match="1 to 2"):
            permutation(n, 0)
    with pytest.raises(IndexError):
        permutation(5, 0).apply([5])


def test_derived_keys_differ_for_every_part_and_for_words_and_numbers():
    assert (
        len({derive_key(1, 2), derive_key(2, 1), derive_key("1", 2), derive_key(12), derive_key(1, "2")}) == 5
    )
    assert len(np.unique(mix_keys(3, np.arange(100_000)))) == 100_000
