"""The command names: holders agree on the names in their files."""

import json


def test_names_are_agreed_on_from_the_command_line(fedbolic, tmp_path):
    (tmp_path / "names.key").write_text("a7" * 32)
    for shop in "ab":
        (tmp_path / f"{shop}.csv").write_text(f"child,parent\nMac {shop},laptops\n")
        words = [tmp_path / f"{shop}.csv", "--key", tmp_path / "names.key"]
        assert fedbolic("names", *words, "--to", tmp_path / f"{shop}.names")[0] == 0
    files = [tmp_path / "a.names", tmp_path / "b.names"]
    code, told, _ = fedbolic("names", *files, "--to", tmp_path / "all.names")
    assert (code, told) == (0, f"{tmp_path / 'all.names'}: 3 names\n")
    code, _, told = fedbolic("names", *files, "--to", tmp_path / "all.txt")
    assert code == 2
    assert "one that ends in .names to write" in told


def test_names_in_triples_are_agreed_on_from_the_command_line(fedbolic, tmp_path):
    (tmp_path / "names.key").write_text("a7" * 32)
    kinds = [tmp_path / f"{kind}.names" for kind in ("entities", "relations")]
    for holder, line in (("a", "aspirin\ttreats\tpain"), ("b", "flu\tcauses\tpain")):
        (tmp_path / f"{holder}.tsv").write_text(line)
        own = [tmp_path / f"{holder}.{kind.name}" for kind in kinds]
        words = [tmp_path / f"{holder}.tsv", "--key", tmp_path / "names.key"]
        code, told, _ = fedbolic("names", *words, "--to", own[0], "--relations", own[1])
        assert (code, told) == (0, f"{own[0]}: 2 names\n{own[1]}: 1 names\n")
    for kind, number in zip(kinds, (3, 2), strict=True):
        files = [tmp_path / f"{holder}.{kind.name}" for holder in "ab"]
        code, told, _ = fedbolic("names", *files, "--to", kind)
        assert (code, told) == (0, f"{kind}: {number} names\n")
    assert json.loads(kinds[0].read_text())["hashed"] is True
    code, _, told = fedbolic("names", *words, "--to", kinds[0], "--relations", kinds[0])
    assert code == 2
    assert "must end in .names and differ" in told
