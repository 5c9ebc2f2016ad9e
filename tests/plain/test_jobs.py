"""Runs of a sweep at the same time are those one after another, byte for byte."""

from fedbolic.sweep import sweep


def test_two_jobs_give_what_one_gives(config, runs):
    rows = {"plain": None, "ditto": {"method": "fedbolic.baselines.Ditto"}}
    found = []
    for jobs in (1, 2):
        folder, stopped = sweep(config, rows, seeds=(0, 1), runs=runs / str(jobs), jobs=jobs)
        assert stopped == []
        found.append(
            {
                file.relative_to(folder): file.read_bytes()
                for name in ("metrics.csv", "place")
                for file in folder.rglob(name)
            }
        )
    assert found[0] == found[1]
    assert len(found[0]) == 6
