"""Ready tables: made once from the public file, kept, and refused where they are damaged."""

import dataclasses
import hashlib
import logging

import pytest
import torch

from fedbolic.data.files.download import cache
from fedbolic.hierarchies import Embedding, ready
from fedbolic.hierarchies.ready_tables import READY
from tests.command_line import refused

GOODS = {"Toys": "", "Toys > Games": "Toys", "Toys > Games > Chess": "Toys > Games", "Food": "Home"}


@pytest.fixture
def public(tmp_path, monkeypatch):
    """A data folder with a small file in the place of Google's."""
    file = tmp_path / "data/hierarchies/google_product_taxonomy.tsv"
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{child}\t{parent}\n" for child, parent in GOODS.items() if parent))
    monkeypatch.setenv("FEDBOLIC_DATA", str(tmp_path / "data"))
    return file


def table():
    return READY["google-products"]


def test_a_table_is_made_once_and_kept(public):
    made = ready("google-products")
    assert set(made.names) == {*GOODS, "Home"}
    assert made.ancestors("Toys > Games > Chess") == ["Toys > Games", "Toys"]
    assert made.nearest("Toys > Games > Chess", 1)[0][0] == "Toys > Games"
    public.unlink()
    again = ready("google-products")
    assert again.names == made.names
    assert torch.equal(again.parents, made.parents)
    for name, tensor in made.places.tensors().items():
        assert torch.equal(again.places.tensors()[name], tensor)
    assert [file.suffix for file in (cache() / "embeddings").iterdir()] == [".npz"]


def test_a_damaged_table_is_named(public):
    ready("google-products")
    (file,) = (cache() / "embeddings").iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ValueError, match=rf"{file.name} holds no embedding.*delete it"):
        ready("google-products")


def test_another_layout_is_another_file(public, monkeypatch):
    other = dataclasses.replace(table().layout, bits=32)
    before = table().file("google-products")
    replaced = dataclasses.replace(table(), layout=other)
    assert replaced.file("google-products").path != before.path


def test_a_published_table_is_verified(public, tmp_path, monkeypatch):
    made = ready("google-products")
    published = dataclasses.replace(table(), checksum="0" * 64, urls=("https://example.org/x",))
    monkeypatch.setitem(READY, "google-products", published)
    file = tmp_path / "data" / published.file("google-products").path
    file.parent.mkdir()
    made.save(file)
    with pytest.raises(ValueError, match="damaged or another file"):
        ready("google-products", download=False)
    right = hashlib.sha256(file.read_bytes()).hexdigest()
    right = dataclasses.replace(published, checksum=right)
    monkeypatch.setitem(READY, "google-products", right)
    public.unlink()  # the table alone is enough
    assert ready("google-products", download=False).names == made.names


def test_without_a_place_to_keep_it_a_table_is_made_with_a_warning(
    public, tmp_path, caplog, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "fedbolic"):
        assert len(ready("google-products")) == 5
    assert "made again next time" in caplog.text


def test_a_missing_public_file_is_named(public):
    public.unlink()
    with pytest.raises(FileNotFoundError, match="taxonomy-with-ids"):
        ready("google-products", download=False)
    with pytest.raises(ValueError, match="one of wordnet-nouns, google-products, got 'verbs'"):
        ready("verbs")


def test_the_command_writes_a_table_and_its_checksum(public, tmp_path, fedbolic):
    to = tmp_path / "google.npz"
    code, out, _ = fedbolic("ready", "google-products", "--to", to)
    assert (code, out) == (0, f"{hashlib.sha256(to.read_bytes()).hexdigest()}  {to}\n")
    assert Embedding.load(to).names == ready("google-products").names
    refused(fedbolic("ready", "verbs", "--to", to), names=["wordnet-nouns"])


@pytest.mark.data
@pytest.mark.parametrize(("name", "nodes"), [("wordnet-nouns", 82192), ("google-products", 5595)])
def test_the_real_tables_are_small_and_right(name, nodes, data_root, monkeypatch):
    monkeypatch.setenv("FEDBOLIC_DATA", str(data_root))
    found = ready(name)
    assert len(found) == nodes
    (file,) = (cache() / "embeddings").iterdir()
    assert file.stat().st_size < 3e6
    # in ten random families the parent is among the nearest
    for node, parent in found.parents[torch.randperm(len(found.parents))[:10]].tolist():
        near = [near for near, _ in found.nearest(found.names[node], 50)]
        assert found.names[parent] in near
