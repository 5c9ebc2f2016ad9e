"""Holders with a file each: their pairs, their numbers, and files that do not fit together."""

import json

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.data import HolderFiles, agree_names
from fedbolic.data.hierarchies.hierarchy_split import PRIVATE, ROOT
from tests.data.hierarchies.cats import pairs_of

COMMON = {("laptops", "electronics"), ("phones", "electronics")}
SHOPS = {
    "a": {("MacBook", "laptops"), ("iPhone", "phones")},
    "b": {("ThinkPad", "laptops"), ("iPhone", "phones"), ("iPhone 9", "iPhone")},
    "c": {("cable", "cables")},
}
KEY = "5f" * 32


def table(pairs):
    return "".join(f"{u}\t{v}\n" for u, v in sorted(pairs))


def closure_of(pairs):
    return set(networkx.transitive_closure_dag(networkx.DiGraph(sorted(pairs))).edges)


@pytest.fixture
def shops(write):
    for shop, pairs in SHOPS.items():
        write(f"shops/{shop}.tsv", table(pairs))
    return write("shops/common.tsv", table(COMMON)).parent


@pytest.fixture
def agreed(shops, write):
    """The file of names after the vocabulary step, and the key."""
    key = write("names.key", KEY + "\n")
    files = [shops.parent / f"{shop}.names" for shop in SHOPS]
    for file in files:
        agree_names([shops / f"{file.stem}.tsv", shops / "common.tsv"], file, key=key)
    agree_names(files, shops.parent / "all.names")
    return {"names": shops.parent / "all.names", "key": key}


@pytest.mark.parametrize("as_mapping", [False, True])
def test_a_client_holds_what_follows_from_its_file_and_the_common_one(as_mapping, shops):
    holders = {shop: shops / f"{shop}.tsv" for shop in "cab"} if as_mapping else shops
    data = HolderFiles(holders, common=shops / "common.tsv").load(Rng(0))
    for client, (_, own) in zip(data.clients, sorted(SHOPS.items()), strict=True):
        assert pairs_of(client.train.hierarchy) == closure_of(own | COMMON)
        names, common = client.train.hierarchy.names, client.train.common.tolist()
        known = {u: p for u, p in zip(names, common, strict=True) if p != PRIVATE}
        assert known.pop("electronics") == ROOT
        assert {(u, names[p]) for u, p in known.items()} == COMMON
    every = set.union(COMMON, *SHOPS.values())
    assert pairs_of(data.holdout.test.hierarchy) == closure_of(every)
    assert data.holdout.test.held.all()
    assert data.meta.num_classes == len({name for pair in every for name in pair})


def test_what_follows_from_two_holders_alone_is_held_by_nobody(write):
    write("shops/a.csv", "lion,cat\n")
    folder = write("shops/b.csv", "cat,mammal\n").parent
    test = HolderFiles(folder).load(Rng(0)).holdout.test
    assert not test.held.all()
    free = test.hierarchy.pairs[~test.held].tolist()
    names = test.hierarchy.names
    assert [(names[u], names[v]) for u, v in free] == [("lion", "mammal")]


@pytest.mark.parametrize("hashed", [False, True])
def test_a_holder_alone_numbers_as_all_holders_together(hashed, shops, agreed):
    if not hashed:
        names = agreed["names"].with_name("clear.names")
        agree_names([shops / f"{x}.tsv" for x in (*SHOPS, "common")], names)
        agreed = {"names": names}
    secret = {"key": agreed["key"]} if hashed else {}
    common = {"common": shops / "common.tsv"}
    together = HolderFiles(shops, **common, **secret).load(Rng(0))
    server = HolderFiles({}, **common, **agreed).load(Rng(0))
    assert server.meta.num_classes == together.meta.num_classes
    ignorant = HolderFiles({}, names=agreed["names"]).load(Rng(0))  # it has no key
    assert (ignorant.meta, len(ignorant.holdout.test)) == (server.meta, 0)
    assert pairs_of(server.holdout.test.hierarchy) == closure_of(COMMON)
    for i, shop in enumerate(sorted(SHOPS)):
        (alone,) = (
            HolderFiles({shop: shops / f"{shop}.tsv"}, **common, **agreed).load(Rng(1)).clients
        )
        train, other = alone.train, together.clients[i].train
        assert train.hierarchy.pairs.tolist() == other.hierarchy.pairs.tolist()
        assert train.common.tolist() == other.common.tolist()
        assert train.numbering == other.numbering == server.holdout.test.numbering
        assert train.numbering.startswith(f"{ignorant.holdout.test.numbering}:")
        assert pairs_of(train.hierarchy) == closure_of(SHOPS[shop] | COMMON)


def test_another_common_file_is_another_numbering(shops, write):
    """Slots follow from it: holders that differ in it would place nodes over one another."""
    other = write("other.tsv", table(COMMON | {("cables", "electronics")}))
    names = {"names": shops.parent / "all.names"}
    agree_names([shops / "a.tsv", other], names["names"])
    digests = {
        HolderFiles({"a": shops / "a.tsv"}, common=common, **names)
        .load(Rng(0))
        .clients[0]
        .train.numbering
        for common in (shops / "common.tsv", other, None)
    }
    assert len(digests) == 3


def test_hashed_names_tell_no_name_and_need_the_key(shops, agreed, write):
    text = agreed["names"].read_text()
    assert not any(name in text for pairs in SHOPS.values() for pair in pairs for name in pair)
    own = {"holders": {"a": shops / "a.tsv"}, "names": agreed["names"]}
    with pytest.raises(ValueError, match=r"a\.tsv: the agreed names are hashed: give the key"):
        HolderFiles(**own).load(Rng(0))
    other = write("other.key", "5e" * 32)
    with pytest.raises(ValueError, match=r"a\.tsv: 4 names are not among the agreed ones"):
        HolderFiles(**own, key=other).load(Rng(0))


NAMES = st.sampled_from("abcdefgh")
UPWARDS = st.tuples(NAMES, NAMES).filter(lambda pair: pair[0] < pair[1])


@given(st.lists(st.sets(UPWARDS, min_size=1), min_size=1, max_size=4))
def test_files_together_are_the_closure_of_their_union(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("shops")
    for i, pairs in enumerate(files):
        (folder / f"{i}.tsv").write_text(table(pairs))
    data = HolderFiles(folder).load(Rng(0))
    assert pairs_of(data.holdout.test.hierarchy) == closure_of(set.union(*files))
    held = set.union(*(closure_of(pairs) for pairs in files))
    test = data.holdout.test
    known = test.hierarchy.pairs[test.held].tolist()
    assert {(test.hierarchy.names[u], test.hierarchy.names[v]) for u, v in known} == held


@pytest.mark.parametrize(
    ("files", "settings", "error"),
    [
        (
            {"a.tsv": "x\ty\n", "b.tsv": "y\tx\n"},
            {},
            "the files together: .* no cycles",
        ),
        ({"a.tsv": "x\ty\ny\tx\n"}, {}, r"a\.tsv: .* form (x -> y -> x|y -> x -> y)"),
        ({"a.tsv": "x\ty\n", "a.csv": "x,z\n"}, {}, "are files of one holder: unite them"),
        ({"a.tsv": "x\ty\n"}, {"names": "few.names"}, r"a\.tsv: 1 names are not .* first 'x'"),
        ({"a.tsv": "x\ty\n"}, {"names": "few.names", "key": "k"}, "are not hashed: leave the key"),
        ({"a.tsv": "x\ty\n"}, {"key": "short"}, "short must hold at least 32 hexadecimal digits"),
        ({"a.tsv": "x\ty\n"}, {"names": "k"}, "k is no file of names: write it with agree_names"),
        ({"a.tsv": "x\ty\n"}, {"names": "bad.names"}, r"bad\.names is damaged"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(files, settings, error, write, tmp_path):
    for name, content in files.items():
        write(f"shops/{name}", content)
    write("few.names", json.dumps({"hashed": False, "names": ["y"]}))
    write("bad.names", json.dumps({"hashed": False, "names": ["y", "x"]}))
    write("k", KEY)
    write("short", "5f")
    with pytest.raises(ValueError, match=error):
        HolderFiles("shops", root=tmp_path, **settings).load(Rng(0))


def test_a_missing_folder_or_an_empty_one_is_said(tmp_path, write):
    with pytest.raises(FileNotFoundError, match="there is no folder shops"):
        HolderFiles("shops", root=tmp_path).load(Rng(0))
    write("shops/README.md", "Nothing yet.")
    with pytest.raises(FileNotFoundError, match="holds no hierarchy"):
        HolderFiles("shops", root=tmp_path).load(Rng(0))
    with pytest.raises(ValueError, match="there are no names"):
        HolderFiles({}).load(Rng(0))
