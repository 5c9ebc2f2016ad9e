"""The command that writes a page, and the list of configurations."""

from tests.command_line import ROOT, refused


def test_a_run_by_name_and_a_page_about_it(fedbolic, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--config=majority/quick", "--runs", runs]
    assert fedbolic("run", *words, "--name=one")[0] == 0
    file = tmp_path / "report.html"
    assert fedbolic("report", runs, "--html", file) == (0, f"open {file} in a browser\n", "")
    assert file.read_text().startswith("<!DOCTYPE html>")
    assert not (runs / "report.md").exists()


def test_a_page_about_nothing_is_refused(fedbolic, tmp_path):
    file = tmp_path / "report.html"
    answer = fedbolic("report", tmp_path, "--html", file)
    assert refused(answer, names=["there is no run in", str(tmp_path)])
    assert refused(fedbolic("run", "--config=majority/quik"), names=["majority/quick"])
    assert not file.exists()


def test_every_configuration_is_listed_by_name_with_its_description(fedbolic):
    code, out, err = fedbolic("configs")
    assert (code, err) == (0, "")
    listed = [line.split()[0] for line in out.splitlines()]
    files = (ROOT / "configs").rglob("*.yaml")
    expected = sorted(str(f.relative_to(ROOT / "configs").with_suffix("")) for f in files)
    assert listed == expected
    assert "FedAvg" in next(line for line in out.splitlines() if line.startswith("fedavg/quick "))


def test_the_demo_ends_with_the_file_to_open():
    recipe = (ROOT / "Makefile").read_text().partition("\ndemo: ")[2].partition("\n\n")[0]
    assert recipe.splitlines()[-1].strip().startswith("@$(BIN)/fedbolic report ")
    assert "--html " in recipe.splitlines()[-1]
