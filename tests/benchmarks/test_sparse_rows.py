"""The benchmark of sparse rows: its cases run, and their memory is that of a table's parts."""

from benchmarks import sparse_rows


def test_the_cases_hold_a_table_its_moments_and_counts_of_rows():
    made = sparse_rows.cases(64, 4, (2, 5))
    numbers = 64 * 4 * 4  # float32
    counts = 64 * 8
    mebibytes = {name: case.mebibytes() * 2**20 for name, case in made.items()}
    assert mebibytes["ball, dense, RiemannianAdam"] == 3 * numbers
    assert mebibytes["ball, sparse, RiemannianAdam"] == 3 * numbers + counts
    assert mebibytes["points of the ball, sparse, RiemannianSGD"] == numbers
    assert all(case.weight.grad.is_sparse == ("sparse" in name) for name, case in made.items())


def test_every_case_has_a_time(capsys):
    made = sparse_rows.cases(8, 2, (1, 3))
    times = sparse_rows.table(made, rounds=1, least=0)
    assert times.keys() == made.keys()
    printed = capsys.readouterr().out
    assert all(name in printed for name in made)
