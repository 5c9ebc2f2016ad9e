import gzip
import hashlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedbolic.data import FashionMNIST
from fedbolic.data.files import download
from fedbolic.data.files.download import cache, fetch
from fedbolic.data.files.published_files import RemoteFile, locate
from fedbolic.data.images import idx as module

GOOD = b"what was published" * 50
MD5 = hashlib.md5(GOOD).hexdigest()
KNOWN = f"md5:{MD5}"


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path not in self.server.pages:
            self.send_error(404)
            return
        if self.path in self.server.together:
            self.server.both.wait(60)
        body, start = self.server.pages[self.path], 0
        if self.path in self.server.resumable:
            start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        if start > len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        cut = self.path in self.server.broken
        self.wfile.write(body[start : start + len(body) // 4] if cut else body[start:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        server.pages, server.asked, server.broken = {"/good/f": GOOD, "/bad/f": b"else"}, [], set()
        server.resumable, server.together, server.both = set(), set(), threading.Barrier(2)
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def nobody():
    """An address that refuses connections: its port is bound, but nothing listens on it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/f"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setattr(download, "cache", lambda: tmp_path / "kept")
    monkeypatch.setattr(download, "_CHUNK", 16)  # what a break may lose
    return tmp_path / "kept"


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_download_is_kept_and_not_repeated(server, folder):
    for _ in range(2):
        assert fetch([f"{server.url}/good/f"], KNOWN, name="A/raw/f").read_bytes() == GOOD
    assert server.asked == ["/good/f"]
    assert names(folder) == ["A/raw/f"]


def test_a_damaged_file_in_the_cache_is_replaced(server, folder):
    (folder / "A").mkdir(parents=True)
    (folder / "A" / "f").write_bytes(GOOD[:-1])
    assert fetch([f"{server.url}/good/f"], KNOWN, name="A/f").read_bytes() == GOOD


@pytest.mark.parametrize("first", ["/none/f", "/bad/f", "/cut/f"])
def test_the_next_mirror_is_tried(first, server, folder):
    server.pages["/cut/f"] = GOOD
    server.broken.add("/cut/f")
    urls = [f"{server.url}{first}", f"{server.url}/good/f", f"{server.url}/never/f"]
    assert fetch(urls, KNOWN, name="f").read_bytes() == GOOD
    assert [*dict.fromkeys(server.asked)] == [first, "/good/f"]
    assert names(folder) == ["f"]


def test_a_mirror_that_is_down_is_passed_over(server, nobody):
    assert fetch([nobody, f"{server.url}/good/f"], KNOWN, name="f").read_bytes() == GOOD


def test_another_file_is_refused_and_not_kept(server, folder):
    with pytest.raises(ValueError, match=MD5) as caught:
        fetch([f"{server.url}/bad/f"], KNOWN, name="A/f")
    assert hashlib.md5(b"else").hexdigest() in str(caught.value)
    assert "A/f" in str(caught.value)
    assert names(folder) == []


def test_of_a_download_cut_short_a_part_is_kept(server, folder):
    server.broken.add("/good/f")
    with pytest.raises(ConnectionError, match="cannot download A/f"):
        fetch([f"{server.url}/good/f"], KNOWN, name="A/f")
    assert names(folder) == ["A/f.part"]
    with pytest.raises((ValueError, ConnectionError), match="cannot download B/f"):
        fetch([f"{server.url}/good/f"], None, name="B/f")  # nothing shows whether parts fit
    assert names(folder) == ["A/f.part"]


def test_a_download_goes_on_as_long_as_every_connection_brings_something(server, folder):
    server.broken.add("/good/f")
    server.resumable.add("/good/f")
    assert fetch([f"{server.url}/good/f"], KNOWN, name="f").read_bytes() == GOOD
    assert 4 <= len(server.asked) <= 6  # a quarter each
    assert names(folder) == ["f"]


def test_a_part_is_finished_by_another_mirror(server, folder):
    server.pages["/cut/f"] = GOOD
    server.broken.add("/cut/f")
    server.resumable.add("/good/f")
    with pytest.raises(ConnectionError):
        fetch([f"{server.url}/cut/f"], KNOWN, name="f")
    part = (folder / "f.part").read_bytes()
    assert GOOD.startswith(part)
    assert part
    assert fetch([f"{server.url}/good/f"], KNOWN, name="f").read_bytes() == GOOD


@pytest.mark.parametrize("wrong", [b"x" * 10, b"x" * 10_000])
def test_a_wrong_part_costs_one_attempt(wrong, server, folder):
    server.resumable.add("/good/f")
    folder.mkdir()
    (folder / "f.part").write_bytes(wrong)
    urls = [f"{server.url}/good/f"] * 2
    assert fetch(urls, KNOWN, name="f").read_bytes() == GOOD
    assert names(folder) == ["f"]


def test_two_that_download_the_same_do_not_disturb_each_other(server, folder):
    server.together.add("/good/f")
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(fetch, [f"{server.url}/good/f"], KNOWN, name="f") for _ in range(2)]
        assert [each.result().read_bytes() for each in asked] == [GOOD] * 2
    assert names(folder) == ["f"]


def test_an_unreachable_server_is_named(server, nobody):
    with pytest.raises(ConnectionError, match="set root to a folder") as caught:
        fetch([f"{server.url}/none/f", nobody], KNOWN, name="f")
    assert f"{server.url}/none/f: 404" in str(caught.value)
    assert nobody in str(caught.value)


def test_local_files_come_first_then_the_download(server, folder, tmp_path, monkeypatch):
    published = RemoteFile("A/f", MD5, (f"{server.url}/good/f",))
    local = tmp_path / "local"
    (local / "A").mkdir(parents=True)
    monkeypatch.setenv("FEDBOLIC_DATA", str(local))
    assert locate(published, root=None, download=True) == (folder / "A" / "f",)
    (local / "torchvision" / "A").mkdir(parents=True)
    (local / "torchvision" / "A" / "f").write_bytes(GOOD)
    assert locate(published, root=None, download=True) == (local / "torchvision" / "A" / "f",)
    (local / "A" / "f").write_bytes(GOOD)
    assert locate(published, root=None, download=True) == (local / "A" / "f",)
    assert server.asked == ["/good/f"]


def test_a_data_folder_of_another_layout_is_named_and_not_the_network(
    server, tmp_path, monkeypatch
):
    local = tmp_path / "local"
    (local / "elsewhere" / "A").mkdir(parents=True)
    (local / "elsewhere" / "A" / "f").write_bytes(GOOD)
    monkeypatch.setenv("FEDBOLIC_DATA", str(local))
    published = RemoteFile("A/f", MD5, (f"{server.url}/none/f",))
    with pytest.raises(FileNotFoundError, match="FEDBOLIC_DATA") as caught:
        locate(published, [["A/g", "A/h"]], root=None, download=True)
    told = str(caught.value)
    assert f"A/f is not in {local} or {local / 'torchvision'}, nor A/g, A/h" in told
    assert server.url not in told


def test_a_root_is_the_only_place_to_look(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(GOOD)
    monkeypatch.setenv("FEDBOLIC_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    published = RemoteFile("f", MD5, ())
    assert locate(published, root=tmp_path, download=True) == (tmp_path / "f",)
    with pytest.raises(FileNotFoundError, match="f is not in"):
        locate(published, root=tmp_path / "else", download=True)


def test_nothing_is_downloaded_unless_allowed(server, folder, tmp_path):
    published = RemoteFile("A/f", MD5, (f"{server.url}/good/f",))
    with pytest.raises(FileNotFoundError, match="set download to fetch it") as caught:
        locate(published, root=None, download=False)
    assert str(folder) in str(caught.value)
    with pytest.raises(FileNotFoundError, match="drop root to download it"):
        locate(published, root=tmp_path, download=True)
    assert server.asked == []
    fetch(published.urls, KNOWN, name="A/f")
    assert locate(published, root=None, download=False) == (folder / "A" / "f",)
    (folder / "A" / "f").write_bytes(GOOD[:-1])
    with pytest.raises(ValueError, match=f"expected md5 {MD5}, found"):
        locate(published, root=None, download=False)


def test_a_damaged_local_file_is_refused_not_replaced(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOLIC_DATA", str(tmp_path))
    (tmp_path / "f").write_bytes(GOOD[:-1])
    with pytest.raises(ValueError, match=f"expected md5 {MD5}, found"):
        locate(RemoteFile("f", MD5, (f"{server.url}/good/f",)), root=None, download=True)
    assert server.asked == []


def test_a_data_set_is_downloaded_and_read(server, write_idx, folder, monkeypatch):
    _, raw, made = write_idx("FashionMNIST")
    md5s = []
    for stem in module._STEMS:
        packed = gzip.compress((raw / stem).read_bytes())
        server.pages[f"/second/{stem}.gz"] = packed
        md5s.append(hashlib.md5(packed).hexdigest())
    monkeypatch.setattr(module, "FASHION_MD5", tuple(md5s))
    mirrors = (f"{server.url}/first/", f"{server.url}/second/")
    monkeypatch.setattr(module, "FASHION_MIRRORS", mirrors)
    parts = FashionMNIST().read(None, download=True)
    assert (parts.x_train[:, 0].numpy() == made["x_train"]).all()
    assert np.array_equal(parts.y_test, made["y_t10k"])
    assert names(folder) == sorted(f"FashionMNIST/raw/{stem}.gz" for stem in module._STEMS)


def test_the_cache_is_a_folder_of_our_own():
    assert "fedbolic" in str(cache())
