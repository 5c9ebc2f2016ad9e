"""Callbacks of a run: each method gets the facts that it takes."""

from fedbolic.run.callbacks import notify


class Watcher:
    def __init__(self):
        self.heard = []

    def on_run_start(self, round):
        self.heard.append(("start", round))

    def on_round_end(self, **facts):
        self.heard.append(("round", facts))

    def on_run_end(self):
        self.heard.append(("end",))


def test_a_method_gets_the_facts_that_it_takes():
    watcher = Watcher()
    for callbacks in ([watcher, object()], []):
        notify(callbacks, "on_run_start", round=3, rounds=5)
        notify(callbacks, "on_round_end", round=4, rounds=5)
        notify(callbacks, "on_run_end", round=5)
    assert watcher.heard == [("start", 3), ("round", {"round": 4, "rounds": 5}), ("end",)]
