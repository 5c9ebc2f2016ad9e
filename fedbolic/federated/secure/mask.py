"""Masks: long integer vectors from a short secret, and integer vectors as bytes on the wire."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jaxtyping import Int64, UInt8
from numpy import ndarray

from fedbolic.federated.aggregators.modular import LIMB, num_limbs

SPARE_ROWS = 16
"""Candidates drawn beyond the expected number, so that a second draw is rare."""


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
    counter = bytes(8)  # number of the block, which the cipher increments
    cipher = Cipher(algorithms.ChaCha20(seed, counter + stream.to_bytes(8, "little")), mode=None)
    keystream = cipher.encryptor()
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
