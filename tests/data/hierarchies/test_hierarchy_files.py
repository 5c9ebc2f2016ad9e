"""Hierarchies from files: every way to write a small closure, and WordNet's mammals."""

import hashlib
from dataclasses import replace

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.data import Mammals, Nouns, read_hierarchy
from fedbolic.data.files.published_files import RemoteFile
from fedbolic.data.hierarchies import hierarchy_files

CATS = {("lion", "cat"), ("cat", "mammal"), ("lion", "mammal")}
LINES = sorted(CATS)


def pairs_of(hierarchy):
    return {(hierarchy.names[u], hierarchy.names[v]) for u, v in hierarchy.pairs.tolist()}


@pytest.fixture
def write(tmp_path):
    """Write a file; return its path."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("a.tsv", "".join(f"{u}\t{v}\n" for u, v in LINES), {}),
        ("a.csv", "".join(f"{u}, {v}\r\n" for u, v in LINES), {}),
        ("a.csv", "".join(f'"{u}","{v}"\n' for u, v in LINES), {}),
        ("a.tsv", "u\tv\n" + "".join(f"{u}\t{v}\n" for u, v in LINES), {"header": True}),
        ("a.tsv", "".join(f"1\t{v}\t{u}\n" for u, v in LINES), {"columns": (2, 1)}),
        (
            "a.csv",
            "\ufeffid1,id2,weight\n" + "".join(f"{u},{v},1\n" for u, v in LINES),
            {"columns": ("id1", "id2")},
        ),
        (
            "a.csv",
            "above,below\n" + "".join(f"{v},{u}\n" for u, v in LINES),
            {"columns": ("below", 0), "header": True},
        ),
        ("a.tsv", "\n".join(f"{u}\t{v}" for u, v in [*LINES, *LINES, ("cat", "cat")]), {}),
    ],
)
def test_the_same_pairs_are_read_however_they_are_written(name, content, settings, write):
    hierarchy = read_hierarchy(write(name, content), **settings)
    assert hierarchy.names == ("cat", "lion", "mammal")
    assert pairs_of(hierarchy) == CATS
    assert hierarchy.num_pairs == 3


@given(st.permutations(LINES))
def test_numbers_do_not_depend_on_the_order_of_lines(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "a.tsv"
    path.write_text("".join(f"{u}\t{v}\n" for u, v in lines))
    hierarchy = read_hierarchy(path)
    assert hierarchy.names == ("cat", "lion", "mammal")
    assert [tuple(hierarchy.names[i] for i in pair) for pair in hierarchy.pairs] == lines


def test_a_node_related_to_itself_alone_is_a_node_without_pairs(write):
    hierarchy = read_hierarchy(write("a.tsv", "entity\tentity\ncat\tmammal\n"))
    assert hierarchy.names == ("cat", "entity", "mammal")
    assert pairs_of(hierarchy) == {("cat", "mammal")}


def test_quotes_are_part_of_a_name_in_tsv(write):
    hierarchy = read_hierarchy(write("a.tsv", '"big"\tcat\n5" gun\tgun\n'))
    assert pairs_of(hierarchy) == {('"big"', "cat"), ('5" gun', "gun")}


@pytest.mark.parametrize(
    ("name", "content", "settings", "error"),
    [
        ("a.tsv", "a\tb\nc\n", {}, r"a\.tsv, line 2: expected 2 columns.*found 1"),
        ("a.tsv", "a\tb\n\nc\td\te\n", {}, r"a\.tsv, line 3: expected 2 columns.*found 3"),
        ("a.csv", "a,b\nc,\n", {}, r"a\.csv, line 2: expected two names, found 'c' and ''"),
        ("a.csv", 'a,b\nc,"d"e\n', {}, r"a\.csv, line 2: "),
        ("a.tsv", b"a\tb\nc\td\n\xe9\tb\n", {}, r"a\.tsv, line 3: the text is not UTF-8"),
        ("a.csv", "id1,id2\na,b\n", {"columns": ("id1", "id3")}, r"line 1.*no column 'id3'"),
        ("a.csv", "a\tb\n", {}, r"line 1: there is no column 1, as positions are 0 \.\. 0"),
        ("a.csv", "a,b\n", {"columns": (-1, 0)}, "column must be at least 0, got -1"),
        ("a.csv", "a,b\n", {"columns": (1, 1)}, "columns must be two different ones"),
        ("a.csv", "id1,id2\n", {"header": True}, r"a\.csv has no pairs"),
        ("a.tsv", "", {}, r"a\.tsv has no pairs"),
        ("a.txt", "a\tb\n", {}, r"a\.txt must end in \.tsv or \.csv"),
        ("a.tsv", "a\tb\nb\ta\n", {}, r"a\.tsv: .* form (a -> b -> a|b -> a -> b)"),
    ],
)
def test_a_file_with_a_bad_line_is_refused_with_its_place(name, content, settings, error, write):
    with pytest.raises(ValueError, match=error):
        read_hierarchy(write(name, content), **settings)


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
    known = replace(hierarchy_files.MAMMALS, checksum=sha256)
    monkeypatch.setattr(hierarchy_files, "MAMMALS", known)
    assert pairs_of(Mammals().read(root, download=False)) == CATS


def test_mammals_are_downloaded_from_the_published_address(write, monkeypatch):
    path = write("elsewhere/mammal_closure.tsv", "cat\tmammal\n")
    asked = []

    def fetch(urls, checksum, *, name):
        asked.append((urls, checksum, name))
        return path

    monkeypatch.setattr("fedbolic.data.files.download.fetch", fetch)
    assert pairs_of(Mammals().read(None, download=True)) == {("cat", "mammal")}
    known: RemoteFile = hierarchy_files.MAMMALS
    assert asked == [(known.urls, f"sha256:{known.checksum}", known.path)]


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
    for root in (tmp_path, None):
        with pytest.raises(FileNotFoundError, match=r"write it with .*transitive_closure\.py"):
            Nouns().read(root, download=True)


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
