"""Masks: long vectors modulo a number from a short secret, and vectors as bytes on the wire."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jaxtyping import Int64, UInt8
from numpy import ndarray

from fedbolic.federated.aggregators.modular import LIMB, num_limbs

SPARE_ROWS = 16
"""Candidates drawn beyond those expected, so that a second draw is rare."""


def expand(seed: bytes, modulus: int, length: int, *, stream: int) -> Int64[ndarray, "n limbs"]:
    """Uniform integers below ``modulus``, as limbs, that only holders of the seed can compute.

    ChaCha20's key stream, read as integers of as many bits as the modulus needs; those that are too
    large are skipped, so no residue is more likely than another.

    Args:
        seed: Of 32 bytes, uniform and secret.
        modulus: At least 2.
        length: How many.
        stream: Its number: another gives independent integers, up to 2 ** 64.

    Example:
        >>> expand(bytes(32), 2**32, 2, stream=0)  # RFC 8439, appendix A.1, vector 1
        array([[2917185654],
               [2419978656]])
    """
    counter = bytes(8)  # the number of the block, which the cipher counts up
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
    """Mask of rows that are integers below the modulus, compared from the highest limb down."""
    below = np.full(len(limbs), modulus >> LIMB * limbs.shape[1] > 0)
    equal = ~below
    for place in reversed(range(limbs.shape[1])):
        digit = modulus >> LIMB * place & (1 << LIMB) - 1
        below |= equal & (limbs[:, place] < digit)
        equal &= limbs[:, place] == digit
    return below


def bytes_of_modulus(modulus: int) -> int:
    """Bytes of an integer below ``modulus`` on the wire.

    Args:
        modulus: At least 2.
    """
    return -(-(modulus - 1).bit_length() // 8)


def pack(limbs: Int64[ndarray, "n limbs"], modulus: int) -> UInt8[ndarray, "n bytes"]:
    """Integers as bytes, the lowest first, no more than the modulus needs.

    Args:
        limbs: Of integers in 0 .. modulus - 1.
        modulus: Says how many bytes there are.

    Example:
        >>> pack(np.array([[258], [3]]), modulus=2**16)
        array([[2, 1],
               [3, 0]], dtype=uint8)
    """
    whole = np.ascontiguousarray(limbs.astype("<u4")).view(np.uint8)
    rows = whole.reshape(len(limbs), 4 * limbs.shape[1])
    return np.ascontiguousarray(rows[:, : bytes_of_modulus(modulus)])


def unpack(packed: UInt8[ndarray, "n bytes"], modulus: int) -> Int64[ndarray, "n limbs"]:
    """The limbs of integers as :func:`pack` wrote them.

    Args:
        packed: What came.
        modulus: The same.
    """
    whole = np.zeros((len(packed), 4 * num_limbs(modulus)), dtype=np.uint8)
    whole[:, : packed.shape[1]] = packed
    return whole.view("<u4").astype(np.int64)
