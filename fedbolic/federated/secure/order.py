"""Order of a cohort by secret numbers, known to its clients but not to the server."""

from collections.abc import Mapping


def place_among(numbers: Mapping[int, bytes], client_id: int) -> int:
    """Rank of a client's number, from 0; equal numbers are ranked by client id.

    If the numbers are independent and uniform, every order is equally likely. Each client draws its
    own number from the operating system, and all clients compute the same places. Departs from the
    paper: there the number is generated from the client's secret key.

    Args:
        numbers: Number of every client, by id; all of the same length.
        client_id: Id of the client to rank.

    References:
        Prakash et al. (2024), App. B, arXiv:2308.06895.

    Example:
        >>> place_among({3: b"m", 5: b"c", 8: b"x"}, 3)
        1
    """
    return sorted(numbers, key=lambda i: (numbers[i], i)).index(client_id)
