"""Power sums: round trips for every field size, and detection of altered messages."""

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhull.labels import Binary, BoseChowla, DecodingError
from fedhull.transmit import decode_hulls, encode_hulls, num_symbols, prime_above

BINS = 10_000
primes = st.sampled_from([prime_above(2**bits - 100) for bits in (26, 31, 61, 127)])


@st.composite
def vectors(draw, q, largest=30, share=1):
    return draw(
        st.dictionaries(st.integers(1, BINS), st.integers(1, (q - 1) // share), max_size=largest)
    )


def added(messages, q):
    return [sum(column) % q for column in zip(*messages, strict=True)]


@given(st.data(), primes, st.integers(0, 9))
def test_power_sums_are_those_of_the_definition(data, q, room):
    values = data.draw(vectors(q))
    capacity = max(len(values) + room, 1)
    sums = [sum(v * pow(j, n, q) for j, v in values.items()) % q for n in range(2 * capacity + 2)]
    assert encode_hulls(values, capacity=capacity, modulus=q) == sums


@given(st.data(), primes, st.integers(1, 5))
def test_a_sum_of_clients_is_read_back(data, q, num_clients):
    clients = [data.draw(vectors(q, share=8)) for _ in range(num_clients)]
    expected: dict[int, int] = {}
    for client in clients:
        for place, value in client.items():
            expected[place] = expected.get(place, 0) + value
    capacity = max(sum(map(len, clients)), 1)
    sums = added([encode_hulls(client, capacity=capacity, modulus=q) for client in clients], q)
    assert decode_hulls(sums, num_bins=BINS, modulus=q) == dict(sorted(expected.items()))


@given(st.data(), primes, st.integers(1, 20))
def test_an_overload_is_reported(data, q, over):
    values = data.draw(vectors(q, largest=60).filter(lambda found: len(found) > over))
    clients = [dict([item]) for item in values.items()]
    capacity = len(values) - over
    sums = added([encode_hulls(client, capacity=capacity, modulus=q) for client in clients], q)
    with pytest.raises(DecodingError):
        decode_hulls(sums, num_bins=BINS, modulus=q)


@given(st.data(), st.integers(1, 3))
def test_an_overload_is_reported_where_every_number_is_a_bin(data, capacity):
    """Every root is a valid bin there; only the spare symbols detect the overload."""
    q = prime_above(BINS)
    size = capacity + 1
    bins = st.dictionaries(
        st.integers(1, BINS), st.integers(1, q - 1), min_size=size, max_size=size
    )
    clients = [dict([item]) for item in data.draw(bins).items()]
    sums = added([encode_hulls(client, capacity=capacity, modulus=q) for client in clients], q)
    with pytest.raises(DecodingError):
        decode_hulls(sums, num_bins=q - 1, modulus=q)


@given(st.data(), primes, st.integers(0, 3))
def test_an_altered_symbol_is_reported(data, q, room):
    values = data.draw(vectors(q).filter(bool))
    sums = encode_hulls(values, capacity=len(values) + room, modulus=q)
    place = data.draw(st.integers(0, len(sums) - 1))
    sums[place] = (sums[place] + data.draw(st.integers(1, q - 1))) % q
    with pytest.raises(DecodingError):
        decode_hulls(sums, num_bins=BINS, modulus=q)


@given(st.data(), primes, st.integers(0, 3))
def test_a_message_of_noise_is_reported(data, q, room):
    """One client's symbols are all replaced."""
    values = data.draw(vectors(q).filter(bool))
    capacity = len(values) + room
    honest = encode_hulls(values, capacity=capacity, modulus=q)
    symbols = st.integers(0, q - 1)
    noise = data.draw(st.lists(symbols, min_size=len(honest), max_size=len(honest)))
    hypothesis.assume(sum(symbol != 0 for symbol in noise) > capacity + 2)
    with pytest.raises(DecodingError):
        decode_hulls(added([honest, noise], q), num_bins=BINS, modulus=q)


@given(st.data(), st.sampled_from([26, 31, 61, 127]), st.sampled_from([Binary(), BoseChowla(4)]))
def test_multisets_of_labels_survive_the_field(data, bits, code):
    """Twelve clients with one label each, up to four of them in one bin."""
    a, q = code.values(12), prime_above(2 ** (bits - 1))
    assert code.largest_sum(12) < q
    chosen = st.sets(st.integers(0, 11), min_size=1, max_size=4).map(sorted)
    labels = data.draw(st.dictionaries(st.integers(1, BINS), chosen, min_size=1, max_size=40))
    messages = [
        encode_hulls(
            {j: a[x] for j, own in labels.items() if x in own}, capacity=len(labels), modulus=q
        )
        for x in range(12)
    ]
    found = decode_hulls(added(messages, q), num_bins=BINS, modulus=q)
    assert {j: code.decode(v, 12) for j, v in found.items()} == dict(sorted(labels.items()))


def test_an_empty_sum_has_no_bins():
    assert decode_hulls(encode_hulls({}, capacity=3, modulus=101), num_bins=50, modulus=101) == {}


def test_too_many_bins_are_refused_at_the_client():
    with pytest.raises(ValueError, match="2 bins do not fit a capacity of 1"):
        encode_hulls({1: 1, 2: 1}, capacity=1, modulus=101)


@pytest.mark.parametrize("values", [{0: 1}, {101: 1}, {1: 0}, {1: 101}, {-1: 5}])
def test_what_would_wrap_around_is_refused_at_the_client(values):
    with pytest.raises(ValueError, match=r"must lie in 1 \.\. 100"):
        encode_hulls(values, capacity=3, modulus=101)


def test_the_field_of_the_olsson_grid():
    assert prime_above(48_668_500) == 48_668_509
    assert num_symbols(146) == 294
