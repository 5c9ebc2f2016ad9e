"""Agreed names: hashes against hmac of hashlib's definition, files that are united or refused."""

import hashlib

import pytest

from fedbolic.data import agree_names
from fedbolic.data.hierarchies.vocabulary import Vocabulary, read_key

KEY = bytes(range(32))


def hmac_by_definition(key, text):
    """RFC 2104 with a block of 64 bytes."""
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(x ^ 0x36 for x in block) + text).digest()
    return hashlib.sha256(bytes(x ^ 0x5C for x in block) + inner).digest()


def test_hashed_names_are_half_of_an_hmac(write, tmp_path):
    names = ["MacBook", "Größe", "laptops"]
    key = write("key", KEY.hex())
    whole = agree_names(
        [write("a.tsv", "MacBook\tlaptops\nGro\u0308ße\tlaptops\n")], tmp_path / "a.names", key=key
    )
    expected = sorted(hmac_by_definition(KEY, name.encode())[:16].hex() for name in names)
    assert list(whole.entries) == expected
    found = Vocabulary.read(tmp_path / "a.names")
    assert (found.entries, found.hashed) == (whole.entries, True)
    assert [expected[i] for i in found.numbers(["MacBook"], KEY)] == [
        hmac_by_definition(KEY, b"MacBook")[:16].hex()
    ]
    assert read_key(key) == KEY


def test_digests_differ_where_a_list_does():
    lists = [["ab", "c"], ["a", "bc"], ["abc"], ["a", "b", "c"], ['a", "b']]
    assert len({Vocabulary.of(names).digest for names in lists}) == len(lists)
    assert Vocabulary.of(["b", "a", "b"]).digest == Vocabulary.of(["a", "b"]).digest


def test_hashed_and_clear_names_are_not_united(write, tmp_path):
    key, table = write("key", KEY.hex()), write("a.tsv", "a\tb\n")
    agree_names([table], tmp_path / "a.names", key=key)
    with pytest.raises(ValueError, match=r"a\.names are hashed, unlike those of .*a\.tsv"):
        agree_names([table, tmp_path / "a.names"], tmp_path / "all.names")
    with pytest.raises(ValueError, match=r"one that ends in \.names to write, got 1 and"):
        agree_names([table], tmp_path / "all.txt")
    with pytest.raises(ValueError, match="give at least one file"):
        agree_names([], tmp_path / "all.names")
