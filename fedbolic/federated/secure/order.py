"""The order of a cohort by secret numbers, which its clients know and the server does not."""

from collections.abc import Mapping


def place_among(numbers: Mapping[int, bytes], client_id: int) -> int:
    """The rank of a client's number, from 0; of equal numbers that of the lesser id comes first.

    Of independent uniform numbers every order is equally likely. Each client draws its own from the
    operating system (departs from the paper: there it is generated from the client's secret key),
    and all compute the same places.

    Args:
        numbers: Of every client, by id, all of the same length.
        client_id: Whose place.

    References:
        Prakash et al. (2024), App. B, arXiv:2308.06895.

    Example:
        >>> place_among({3: b"m", 5: b"c", 8: b"x"}, 3)
        1
    """
    return sorted(numbers, key=lambda i: (numbers[i], i)).index(client_id)
