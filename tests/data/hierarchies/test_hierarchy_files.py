"""Hierarchies from files: every way to write a small closure, and every way to spoil it."""

import gzip
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.imports import MissingExtraError
from fedbolic.core.reading import LIMIT
from fedbolic.data import read_hierarchy
from fedbolic.data.hierarchies import named_pairs
from tests.data.hierarchies.cats import CATS, LINES, OBO, SKOS, pairs_of


def packed(data):
    return gzip.compress(data, mtime=0)  # in the name of a case, which must not tell the time


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
        ("a.csv", "Child,Parent\n" + "".join(f"{u},{v}\n" for u, v in LINES), {}),
        ("a.tsv.gz", packed("".join(f"{u}\t{v}\n" for u, v in LINES).encode()), {}),
        ("a.json", json.dumps({"lion": ["cat", "mammal"], "cat": "mammal", "mammal": None}), {}),
        ("a.json.gz", packed(b'{"lion": ["cat", "mammal"], "cat": ["mammal"]}'), {}),
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
        ("a.csv", "id1,id2\n", {}, r"a\.csv has no pairs"),
        ("a.tsv", "", {}, r"a\.tsv has no pairs"),
        ("a.txt", "a\tb\n", {}, r"a\.txt must end in one of \.tsv, \.csv"),
        ("a.obo.gz", "", {}, r"a\.obo\.gz must end in one of"),
        ("a.tsv.gz", "a\tb\n", {}, r"a\.tsv\.gz is truncated or damaged"),
        ("a.tsv.gz", packed(b"a\tb\n")[:-9], {}, r"a\.tsv\.gz is truncated or damaged"),
        ("a.json", '{"a": "b", "a": "c"}', {}, r"a\.json: 'a' is given twice"),
        ("a.json", '{"a": ["b", 3]}', {}, r"a\.json: 'a' must have null, a name or a list"),
        ("a.json", '{"a": ""}', {}, r"a\.json: 'a' must have null, a name or a list"),
        ("a.json", '["a", "b"]', {}, r"a\.json must be an object of names and parents, got a list"),
        ("a.json", '{"a": ', {}, r"a\.json is not JSON in UTF-8"),
        ("a.json", "[" * 100_000, {}, r"a\.json is not JSON in UTF-8"),
        ("a.json", '{"a": "b", "b": "a"}', {}, r"a\.json: .* form (a -> b -> a|b -> a -> b)"),
        ("a.tsv", "a\tb\nb\ta\n", {}, r"a\.tsv: .* form (a -> b -> a|b -> a -> b)"),
    ],
)
def test_a_file_with_a_bad_line_is_refused_with_its_place(name, content, settings, error, write):
    with pytest.raises(ValueError, match=error):
        read_hierarchy(write(name, content), **settings)


def test_a_first_line_of_usual_names_is_a_pair_if_the_reader_says_so(write):
    hierarchy = read_hierarchy(write("a.csv", "child,parent\nlion,cat\n"), header=False)
    assert pairs_of(hierarchy) == {("child", "parent"), ("lion", "cat")}


def test_dropped_pairs_are_counted_in_one_line(write, caplog):
    with caplog.at_level(logging.WARNING, "fedbolic"):
        read_hierarchy(write("clean.tsv", "cat\tmammal\n"))
        assert not caplog.messages
        read_hierarchy(write("a.tsv", "cat\tcat\n" + "lion\tcat\n" * 4 + "cat\tmammal\n" * 2))
    (line,) = caplog.messages
    assert line.endswith("a.tsv: dropped 1 pairs of a node with itself and 4 repeated pairs")


@pytest.mark.parametrize("name", ["a.tsv.gz", "a.json.gz"])
def test_a_bomb_is_refused_before_it_is_unpacked(name, write, monkeypatch):
    monkeypatch.setenv(LIMIT, str(2**20))
    body = b'{"a": "b", ' + b" " * 2**24 + b"}" if "json" in name else b"a\tb\n" * 2**22
    with pytest.raises(ValueError, match=r"takes \d{7} bytes once it is decoded, more than"):
        read_hierarchy(write(name, gzip.compress(body)))


def test_a_file_of_too_many_pairs_is_refused(write, monkeypatch):
    monkeypatch.setattr(named_pairs, "MOST_LINES", 3)
    assert read_hierarchy(write("a.tsv", "a\tb\n" * 3)).num_pairs == 1
    with pytest.raises(ValueError, match=r"a\.tsv has more than 3 pairs"):
        read_hierarchy(write("a.tsv", "a\tb\n" * 4))


ONTOLOGIES = [("fastobo", "cats.obo", OBO), ("rdflib", "cats.ttl", SKOS)]


@pytest.mark.parametrize(("reader", "name", "content"), ONTOLOGIES)
def test_an_ontology_is_read_by_its_own_reader(reader, name, content, write):
    pytest.importorskip(reader)
    hierarchy = read_hierarchy(write(name, content))
    short = {tuple(name.rpartition("/")[2] for name in pair) for pair in pairs_of(hierarchy)}
    assert short == {("F:3", "F:2"), ("F:2", "F:1")}
    assert {name.rpartition("/")[2] for name in hierarchy.names} == {"F:1", "F:2", "F:3", "F:5"}
    with pytest.raises(ValueError, match=r"is damaged or no (OBO|RDF) file"):
        read_hierarchy(write(name, content[:-5] + "\nno [ontology\n"))


@pytest.mark.parametrize(("reader", "name", "content"), ONTOLOGIES)
def test_without_its_reader_an_ontology_names_the_extra(reader, name, content, write, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, reader, None)
    with pytest.raises(MissingExtraError, match=rf"needs {reader}: .*fedbolic\[ontologies\]"):
        read_hierarchy(write(name, content))
