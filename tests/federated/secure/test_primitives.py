"""Building blocks of a secure sum: shares, masks, fixed point, sealed and signed messages."""

import random

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedbolic.federated.aggregators.modular import from_limbs, num_limbs, reduce_limbs, to_limbs
from fedbolic.federated.secure import keys
from fedbolic.federated.secure.fixed_point import (
    FixedPoint,
    Residues,
    decode_tree,
    encode_tree,
    form_of,
)
from fedbolic.federated.secure.mask import bytes_of_modulus, expand, pack, sum_masks, unpack
from fedbolic.federated.secure.masked import pair_sign
from fedbolic.federated.secure.preparation import ciphertext_key, commitment, mask_seed
from fedbolic.federated.secure.roster import Roster, is_genuine, make_card, to_bytes, to_tensor
from fedbolic.federated.secure.shamir import PRIME, join_shares, split_secret
from tests.federated.secure.parties import flipped

MODULI = [2, 3, 2**16 - 1, 2**32, 2**32 + 15, 2**61 - 1, 2**62, 2**127 - 1, 10**40]
moduli = st.sampled_from(MODULI)
seeds = st.binary(min_size=32, max_size=32)


def test_the_field_of_shares_is_the_first_above_secrets():
    def is_prime(n):  # Miller-Rabin test
        d, s = n - 1, 0
        while d % 2 == 0:
            d, s = d // 2, s + 1
        for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
            x = pow(base, d, n)
            if x not in (1, n - 1) and all(pow(x, 2**i, n) != n - 1 for i in range(1, s)):
                return False
        return True

    assert is_prime(PRIME)
    assert not any(is_prime(n) for n in range(2**256 + 1, PRIME, 2))


@given(seeds, st.data())
def test_any_threshold_of_shares_gives_the_secret(secret, data):
    points = data.draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=8, unique=True))
    threshold = data.draw(st.integers(1, len(points)))
    shares = dict(zip(points, split_secret(secret, points, threshold), strict=True))
    chosen = data.draw(st.permutations(points))[:threshold]
    assert join_shares({point: shares[point] for point in chosen}) == secret


def test_fewer_shares_fit_any_secret():
    secret, other = bytes(32), bytes([7] * 32)
    shares = split_secret(secret, [1, 2, 3, 4, 5], threshold=3)
    # the line through (0, other) and two of the shares has at most the degree of the polynomial
    values = {0: int.from_bytes(other), 1: int.from_bytes(shares[0]), 2: int.from_bytes(shares[1])}
    third = sum(
        y * int(np.prod([(3 - b) for b in values if b != a], dtype=object))
        * pow(int(np.prod([(a - b) for b in values if b != a], dtype=object)), -1, PRIME)
        for a, y in values.items()
    ) % PRIME  # fmt: skip
    assert join_shares({1: shares[0], 2: shares[1], 3: third.to_bytes(33)}) == other
    assert len({split_secret(secret, [1, 2], 2)[0] for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((bytes(31), [1, 2], 2), "32 bytes"),
        ((bytes(32), [1, 1], 2), "different"),
        ((bytes(32), [0, 1], 2), "at least 1"),
        ((bytes(32), [1, 2], 3), "threshold"),
    ],
)
def test_shares_that_cannot_be_made_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        split_secret(*arguments)


@given(seeds, moduli, st.integers(0, 40), st.integers(0, 3))
def test_masks_are_the_key_stream_in_integers_with_the_large_ones_left_out(
    seed, modulus, length, stream
):
    cipher = Cipher(algorithms.ChaCha20(seed, bytes(8) + stream.to_bytes(8, "little")), None)
    keystream, width = cipher.encryptor(), 4 * num_limbs(modulus)
    expected = []
    while len(expected) < length:
        drawn = int.from_bytes(keystream.update(bytes(width)), "little")
        drawn &= 2 ** (modulus - 1).bit_length() - 1
        expected += [drawn] if drawn < modulus else []
    limbs = expand(seed, modulus, length, stream=stream)
    assert from_limbs(torch.from_numpy(limbs)) == expected


@pytest.mark.parametrize("modulus", [3, 5, 2**61 - 1, 3 * 2**60, 3 * 2**125])
def test_masks_are_uniform(modulus):
    drawn = from_limbs(torch.from_numpy(expand(bytes(range(32)), modulus, 30_000, stream=0)))
    cells = min(modulus, 12)
    counts = np.bincount([value * cells // modulus for value in drawn], minlength=cells)
    assert chisquare(counts).pvalue > 1e-4


@given(st.data(), moduli)
def test_packed_numbers_are_unpacked_and_no_longer_than_they_must_be(data, modulus):
    values = data.draw(st.lists(st.integers(0, modulus - 1), max_size=5))
    packed = pack(to_limbs(values, modulus).numpy(), modulus)
    assert packed.shape == (len(values), bytes_of_modulus(modulus))
    assert 256 ** bytes_of_modulus(modulus) >= modulus > 256 ** (bytes_of_modulus(modulus) - 1)
    assert [int.from_bytes(row.tobytes(), "little") for row in packed] == values
    assert from_limbs(torch.from_numpy(unpack(packed, modulus))) == values


@given(st.data(), moduli)
def test_limbs_are_reduced_as_integers_are(data, modulus):
    limb = st.integers(*data.draw(st.sampled_from([(-(2**40), 2**40), (-(2**61), 2**61)])))
    rows = data.draw(st.lists(st.tuples(*[limb] * num_limbs(modulus)), min_size=1, max_size=5))
    limbs = torch.tensor(rows)
    expected = [sum(x << 32 * i for i, x in enumerate(row)) % modulus for row in rows]
    assert from_limbs(reduce_limbs(limbs, modulus)) == expected


@given(st.data(), st.sampled_from([2**32, 2**61 - 1, 2**62, 2**127 - 1]), st.integers(1, 6))
def test_integers_of_either_sign_add_up_exactly(data, modulus, num):
    bound = min((modulus - 1) // 2, 2**62) // num
    rows = [data.draw(st.lists(st.integers(-bound, bound), min_size=3, max_size=3))
            for _ in range(num)]  # fmt: skip
    code = FixedPoint(modulus)
    total = sum(code.encode(torch.tensor(row), num) for row in rows)
    assert code.decode(total, torch.int64).tolist() == [sum(of) for of in zip(*rows, strict=True)]


@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=6), st.integers(8, 30))
def test_floats_add_up_within_half_a_unit_each(values, bits):
    code = FixedPoint(2**62, bits)
    rows = [torch.tensor([value], dtype=torch.float64) for value in values]
    total = sum(code.encode(row, len(values)) for row in rows)
    error = code.decode(total, torch.float64).item() - sum(values)
    assert abs(error) <= len(values) * 2.0 ** -(bits + 1) + 1e-10


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([2**30]),
        torch.tensor([-(2**63)]),
        torch.tensor([200.0], dtype=torch.float64),
        torch.tensor([torch.inf], dtype=torch.float64),
    ],
)
def test_numbers_that_might_wrap_around_are_refused(values):
    with pytest.raises(ValueError, match="too large for a sum of 2 modulo"):
        FixedPoint(2**31, fraction_bits=24).encode(values, num_summands=2)


@pytest.mark.parametrize("modulus", [2**32, 2**127 - 1])
def test_a_tree_is_read_back_from_its_numbers(modulus):
    payload = {"a": torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8), "b": {}, "c": {"d": 5}}
    summand = {"a": payload["a"].long(), "b": {}, "c": {"d": torch.tensor(5)}}
    code = FixedPoint(modulus)
    limbs = encode_tree(summand, code, 1)
    total, like = decode_tree(limbs, code, form_of(payload, summand), "cpu")
    assert total["b"] == like["b"] == {}
    assert torch.equal(total["a"], summand["a"])
    assert torch.equal(total["c"]["d"], summand["c"]["d"])
    assert like["a"].dtype == torch.uint8
    assert like["c"]["d"] == 0
    with pytest.raises(ValueError, match="the form has 5 numbers"):
        decode_tree(torch.cat([limbs, limbs]), code, form_of(payload, summand), "cpu")


def test_residues_stay_as_they_are():
    modulus = 2**61 - 1
    limbs = to_limbs([modulus - 1, 5], modulus)
    summand = {"s": limbs}
    code = Residues(modulus)
    encoded = encode_tree(summand, code, 3)
    total, _ = decode_tree(encoded + encoded, code, form_of(summand, summand), "cpu")
    assert from_limbs(total["s"]) == [modulus - 2, 10]


def test_masks_of_a_pair_cancel():
    seed, modulus = bytes(range(32)), 2**61 - 1
    pair = [sum_masks([(pair_sign(a, b), seed)], modulus, 5, stream=0) for a, b in ((1, 4), (4, 1))]
    assert not reduce_limbs(torch.from_numpy(pair[0] + pair[1]), modulus).any()
    assert pair[0].any()


@pytest.mark.parametrize("modulus", [*MODULI, 3 * 2**60, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1])
@pytest.mark.parametrize("length", [0, 1, 2**14 - 1, 2**14 + 3, 40_000])
def test_a_sum_of_masks_is_that_of_single_masks(modulus, length):
    seeds = [(sign, bytes([k] * 32)) for k, sign in enumerate((1, -1, -1, 1, -1))]
    found = torch.from_numpy(sum_masks(seeds, modulus, length, stream=3))
    rows = [sign * torch.from_numpy(expand(seed, modulus, length, stream=3))
            for sign, seed in seeds]  # fmt: skip
    ends = [0, 1, 2**14 - 1, 2**14, length - 1]
    some = sorted({i for i in ends if 0 <= i < length})
    expected = [value % modulus for value in from_limbs(sum(rows)[some])]
    assert [value % modulus for value in from_limbs(found[some])] == expected
    assert found.shape == (length, num_limbs(modulus))


def agree(secret, public, **about):
    return keys.derive(keys.Agreement(secret).with_party(public), **about)


def test_a_pair_agrees_and_nobody_else_does():
    first, second, third = (keys.new_secret() for _ in range(3))
    shown = [keys.agreement_key(secret) for secret in (first, second, third)]
    about = {"session": b"s", "purpose": b"p"}
    common = agree(first, shown[1], **about)
    assert common == agree(second, shown[0], **about)
    others = [
        agree(third, shown[0], **about),
        agree(first, shown[1], session=b"t", purpose=b"p"),
        agree(first, shown[1], session=b"s", purpose=b"q"),
    ]
    assert common not in others
    with pytest.raises(keys.AlteredError, match="gives no secret"):
        agree(first, bytes(32), **about)


def test_ten_thousand_altered_messages_are_found():
    random.seed(5)
    signers, ciphers, mask_keys = ([keys.new_secret() for _ in range(3)] for _ in range(3))
    cards = tuple(
        make_card(4, i, cipher=ciphers[i], mask=mask_keys[i], signer=signers[i]) for i in range(3)
    )
    roster = Roster(4, (0, 1, 2), cards)
    common = keys.Agreement(ciphers[0]).with_party(roster.cipher_key(1))
    assert common == keys.Agreement(ciphers[1]).with_party(roster.cipher_key(0))
    reading = ciphertext_key(roster, common, sender=0, receiver=1)
    ciphertext = keys.seal(reading, bytes(range(66)))
    assert keys.unseal(reading, ciphertext) == bytes(range(66))
    vector = {"form": "{}", "sums": to_tensor(bytes(range(200))), "weight": to_tensor(bytes(8))}
    signed = roster.signed("sums", 1, vector, signer=signers[1])
    assert roster.is_signed("sums", 1, signed)
    seed = keys.new_secret()
    shares = dict(zip([1, 2, 3], split_secret(seed, [1, 2, 3], 2), strict=True))
    shown = commitment(seed, roster)
    agreed = roster.signed(
        "survivors", 2, {"survivors": torch.tensor([0, 1, 2])}, signer=signers[2]
    )

    def altered(content):
        return to_bytes(
            flipped(to_tensor(content), random.randrange(len(content)), random.randrange(8))
        )

    def altered_payload(payload):
        name = random.choice([n for n, leaf in payload.items() if isinstance(leaf, torch.Tensor)])
        leaf = payload[name]
        content = torch.frombuffer(bytearray(altered(to_bytes(leaf))), dtype=leaf.dtype)
        return {**payload, name: content.reshape(leaf.shape)}

    for _ in range(2000):
        assert not is_genuine(altered(cards[0]), 4, 0)
        with pytest.raises(keys.AlteredError):
            keys.unseal(reading, altered(ciphertext))
        assert not roster.is_signed("sums", 1, altered_payload(signed))
        assert not roster.is_signed("survivors", 2, altered_payload(agreed))
        try:  # a share signed by a lying client is detected by the value it reconstructs
            found = join_shares({1: shares[1], 3: altered(shares[3])})
        except ValueError:
            continue
        assert commitment(found, roster) != shown
    # unaltered messages in the wrong place
    assert not is_genuine(cards[0], 4, 1)
    assert not is_genuine(cards[0], 5, 0)
    assert not roster.is_signed("sums", 2, signed)
    assert not roster.is_signed("unmasking", 1, signed)
    assert not Roster(5, (0, 1, 2), cards).is_signed("sums", 1, signed)
    assert not roster.is_signed("sums", 1, {**signed, "form": "{ }"})
    third = keys.Agreement(ciphers[1]).with_party(roster.cipher_key(2))
    for wrong, *ends in ((common, 1, 0), (third, 0, 1), (common, 2, 1)):
        key = ciphertext_key(roster, wrong, sender=ends[0], receiver=ends[1])
        with pytest.raises(keys.AlteredError):
            keys.unseal(key, ciphertext)
    everybody = roster.among((0, 1, 2))
    own = [keys.Agreement(secret) for secret in mask_keys]
    common = mask_seed(roster, own[0], other=1, agreed=everybody)
    assert common == mask_seed(roster, own[1], other=0, agreed=everybody)
    assert common != mask_seed(roster, own[1], other=0, agreed=roster.among((0, 1)))


@given(st.binary(max_size=60))
def test_a_sealed_letter_is_read_with_its_key_alone(ciphertext):
    key, other = keys.new_secret(), keys.new_secret()
    assert keys.unseal(key, keys.seal(key, ciphertext)) == ciphertext
    assert keys.seal(key, ciphertext) != keys.seal(key, ciphertext)
    for wrong, sealed in ((other, keys.seal(key, ciphertext)), (key, b""), (key, bytes(30))):
        with pytest.raises(keys.AlteredError):
            keys.unseal(wrong, sealed)


def test_long_term_keys_are_written_once_and_read_back(tmp_path):
    keys.write_identities(tmp_path / "keys", 2)
    for i in range(2):
        secret = keys.read_secret(tmp_path / "keys", i)
        assert keys.identity(secret) == keys.read_identity(tmp_path / "keys", i)
        assert (tmp_path / "keys" / f"{i}.key").stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="exists: take another folder"):
        keys.write_identities(tmp_path / "keys", 2)
    with pytest.raises(ValueError, match="there is no key"):
        keys.read_identity(tmp_path / "keys", 2)
