"""Masks: long integer vectors from a short secret, and integer vectors as bytes on the wire."""

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from jaxtyping import Int64, UInt8, UInt64
from numpy import ndarray

from fedbolic.federated.aggregators.modular import LIMB, num_limbs

SPARE_ROWS = 16
"""Candidates drawn beyond the expected number, so that a second draw is rare."""

_BLOCK = 2**14
"""Integers of a mask that are added at once."""

_ZEROS = memoryview(bytes(8 * _BLOCK))


def expand(seed: bytes, modulus: int, length: int, *, stream: int) -> Int64[ndarray, "n limbs"]:
    """Uniform integers below ``modulus``, as limbs, that only holders of the seed can compute.

    The key stream of ChaCha20 is read as integers with as many bits as the modulus needs. Integers
    that are too large are skipped, so that all residues are equally likely.

    Args:
        seed: 32 bytes, uniform and secret.
        modulus: At least 2.
        length: Number of integers.
        stream: Number of the stream, below 2 ** 64; different streams are independent.

    Example:
        >>> expand(bytes(32), 2**32, 2, stream=0)  # RFC 8439, appendix A.1, vector 1
        array([[2917185654],
               [2419978656]])
    """
    keystream = _keystream(seed, stream)
    width, bits = num_limbs(modulus), (modulus - 1).bit_length()
    found, missing = [], length
    while missing > 0:
        rows = missing * 2**bits // modulus + SPARE_ROWS
        words = np.frombuffer(keystream.update(bytes(4 * width * rows)), dtype="<u4")
        limbs = words.reshape(rows, width).astype(np.int64)
        limbs[:, -1] &= (1 << bits - LIMB * (width - 1)) - 1
        kept = limbs[_below(limbs, modulus)][:missing]
        found.append(kept)
        missing -= len(kept)
    return np.concatenate(found) if found else np.empty((0, width), dtype=np.int64)


def sum_masks(
    signed_seeds: Iterable[tuple[int, bytes]], modulus: int, length: int, *, stream: int
) -> Int64[ndarray, "n limbs"]:
    """Signed sum of results of :func:`expand`, in 0 .. modulus - 1 or not yet reduced.

    Args:
        signed_seeds: Pairs of a sign and a seed.
        modulus: At least 2.
        length: Number of integers.
        stream: Number of the stream.
    """
    if num_limbs(modulus) > 2 or modulus > 2**63:
        total = np.zeros((length, num_limbs(modulus)), dtype=np.int64)
        for sign, seed in signed_seeds:
            total += sign * expand(seed, modulus, length, stream=stream)
        return total
    whole = np.zeros(length, dtype=np.uint64)
    for sign, seed in signed_seeds:
        _add_mask(whole, sign, seed, modulus, stream)
    if num_limbs(modulus) == 1:
        return whole.view(np.int64)[:, None]
    return np.ascontiguousarray(whole.astype("<u8").view("<u4").reshape(-1, 2)).astype(np.int64)


def _add_mask(
    whole: UInt64[ndarray, " n"], sign: int, seed: bytes, modulus: int, stream: int
) -> None:
    """Add one mask to residues, block by block, so that a block stays in a processor's cache."""
    width, q = num_limbs(modulus), np.uint64(modulus)
    low_bits = (1 << (modulus - 1).bit_length()) - 1
    keystream, done = _keystream(seed, stream), 0
    while done < len(whole):
        count = min(len(whole) - done, _BLOCK)
        words = np.frombuffer(keystream.update(_ZEROS[: 4 * width * count]), dtype=f"<u{4 * width}")
        drawn = words.astype(np.uint64)
        drawn &= np.uint64(low_bits)
        if low_bits >= modulus:
            large = drawn >= q
            drawn = drawn[~large] if large.any() else drawn
        block = whole[done : done + len(drawn)]
        block += drawn if sign > 0 else q - drawn
        np.minimum(block, block - q, out=block)  # wraps around, and is then large, below q
        done += len(drawn)


def _keystream(seed: bytes, stream: int) -> CipherContext:
    """Key stream of ChaCha20."""
    counter = bytes(8)  # number of the block, which the cipher increments
    nonce = counter + stream.to_bytes(8, "little")
    return Cipher(algorithms.ChaCha20(seed, nonce), mode=None).encryptor()


def _below(limbs: Int64[ndarray, "n limbs"], modulus: int) -> ndarray:
    """Mask of the rows that are integers below the modulus, compared from the highest limb down."""
    below = np.full(len(limbs), modulus >> LIMB * limbs.shape[1] > 0)
    equal = ~below
    for place in reversed(range(limbs.shape[1])):
        digit = modulus >> LIMB * place & (1 << LIMB) - 1
        below |= equal & (limbs[:, place] < digit)
        equal &= limbs[:, place] == digit
    return below


def bytes_of_modulus(modulus: int) -> int:
    """Number of bytes of an integer below ``modulus`` on the wire.

    Args:
        modulus: At least 2.
    """
    return -(-(modulus - 1).bit_length() // 8)


def pack(limbs: Int64[ndarray, "n limbs"], modulus: int) -> UInt8[ndarray, "n bytes"]:
    """Integers as bytes, the lowest first, in as few bytes as the modulus allows.

    Args:
        limbs: Limbs of integers in 0 .. modulus - 1.
        modulus: Modulus that determines the number of bytes, at least 2.

    Example:
        >>> pack(np.array([[258], [3]]), modulus=2**16)
        array([[2, 1],
               [3, 0]], dtype=uint8)
    """
    whole = np.ascontiguousarray(limbs.astype("<u4")).view(np.uint8)
    rows = whole.reshape(len(limbs), 4 * limbs.shape[1])
    return np.ascontiguousarray(rows[:, : bytes_of_modulus(modulus)])


def unpack(packed: UInt8[ndarray, "n bytes"], modulus: int) -> Int64[ndarray, "n limbs"]:
    """Limbs of the integers in a result of :func:`pack`.

    Args:
        packed: Bytes as received.
        modulus: The same modulus.
    """
    whole = np.zeros((len(packed), 4 * num_limbs(modulus)), dtype=np.uint8)
    whole[:, : packed.shape[1]] = packed
    return whole.view("<u4").astype(np.int64)
