"""Triples of holders with a file each: agreed numbers, held-out triples, refusals."""

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import Families, HolderTriples, agree_names, write_triple_names

GRAPH = Families(2, 3).read(None)
NAMED = GRAPH.names(GRAPH.train)
HOLDERS = ("amber", "birch", "cedar")
KINDS = ("entities", "relations")


@pytest.fixture
def folder(tmp_path):
    """Files of three holders; birch and cedar share triples."""
    parts = NAMED[:25], NAMED[25:55], NAMED[45:]
    files = tmp_path / "files"
    files.mkdir()
    for holder, part in zip(HOLDERS, parts, strict=True):
        (files / f"{holder}.tsv").write_text("".join("\t".join(t) + "\n" for t in part))
    (tmp_path / "key").write_text("a7" * 32)
    return files


def agreed(folder, *, key=None):
    for holder in HOLDERS:
        own = [folder.parent / f"{holder}.{kind}.names" for kind in KINDS]
        write_triple_names([folder / f"{holder}.tsv"], *own, key=key)
    for kind in KINDS:
        files = [folder.parent / f"{holder}.{kind}.names" for holder in HOLDERS]
        agree_names(files, folder.parent / f"{kind}.names")
    return {kind: folder.parent / f"{kind}.names" for kind in KINDS}


def named(split):
    return {
        (split.entities[h], split.relations[r], split.entities[t])
        for h, r, t in split.triples.tolist()
    }


def test_every_holder_has_the_triples_of_its_file(folder):
    data = HolderTriples(folder).load(Rng(0))
    assert data.meta.num_classes == len(GRAPH.entities)
    for client, part in zip(data.clients, (NAMED[:25], NAMED[25:55], NAMED[45:]), strict=True):
        splits = client.train, client.validation, client.test
        assert set.union(*map(named, splits)) == set(part)
        assert sum(map(len, splits)) == len(part)


def test_no_held_out_triple_is_a_training_triple_of_another_holder(folder):
    data = HolderTriples(folder, test_rate=0.2).load(Rng(1))
    trained = set.union(*(named(client.train) for client in data.clients))
    assert named(data.holdout.test)
    assert not trained & named(data.holdout.test)


def test_nodes_with_agreed_names_number_as_the_simulation_does(folder):
    key = folder.parent / "key"
    files = agreed(folder, key=key)
    whole = HolderTriples(folder, key=key, test_rate=0.0, validation_rate=0.0).load(Rng(0))
    for number, holder in enumerate(HOLDERS):
        source = HolderTriples(
            {holder: folder / f"{holder}.tsv"}, **files, key=key, test_rate=0.0, validation_rate=0.0
        )
        (client,) = source.load(Rng(0)).clients
        assert torch.equal(
            client.train.triples.unique(dim=0),
            whole.clients[number].train.triples.unique(dim=0),
        )
        assert client.train.numbering == whole.clients[number].train.numbering
        strangers = set(client.train.entities) - set(GRAPH.entities)
        known = {end for h, _, t in named(client.train) for end in (h, t)}
        assert len(strangers) == len(GRAPH.entities) - len(known)  # these are hashes
    server = HolderTriples(**files).load(Rng(0))
    assert server.holdout.test.numbering == whole.holdout.test.numbering
    assert server.meta.input_shape == whole.meta.input_shape


def test_a_key_among_the_files_is_no_holder(folder):
    key = (folder.parent / "key").rename(folder / "key.txt")
    assert HolderTriples(folder, key=key).load(Rng(0)).meta.num_clients == len(HOLDERS)


def test_a_node_whose_file_is_empty_has_no_triples(folder):
    files = agreed(folder)
    (folder / "amber.tsv").write_text("")
    (client,) = HolderTriples({"amber": folder / "amber.tsv"}, **files).load(Rng(0)).clients
    assert [len(part) for part in (client.train, client.validation, client.test)] == [0, 0, 0]
    assert client.train.entities == GRAPH.entities


def test_names_that_were_not_agreed_are_refused(folder):
    files = agreed(folder)
    (folder / "amber.tsv").write_text("stranger\tparent\tnobody\n")
    with pytest.raises(ValueError, match="2 names are not among the agreed ones"):
        HolderTriples({"amber": folder / "amber.tsv"}, **files).load(Rng(0))
    with pytest.raises(ValueError, match="are not hashed: leave the key out"):
        HolderTriples(folder, **files, key=folder.parent / "key").load(Rng(0))


def test_what_lacks_files_or_names_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="there are no names"):
        HolderTriples().load(Rng(0))
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        HolderTriples(tmp_path / "nowhere").load(Rng(0))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no triples"):
        HolderTriples(tmp_path / "empty").load(Rng(0))
    (folder / "amber.txt").write_text("a\tr\tb\n")
    with pytest.raises(ValueError, match="are files of one holder"):
        HolderTriples(folder).load(Rng(0))
    with pytest.raises(ValueError, match=r"must end in \.names"):
        write_triple_names([folder / "birch.tsv"], tmp_path / "a.txt", tmp_path / "b.names")
