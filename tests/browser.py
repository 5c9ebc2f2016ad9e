"""Look at a page in Chromium, without a display: ``python tests/browser.py PAGE``.

With ``--image FILE.png`` it takes an image, with ``--script FILE.js`` it first runs a script in the
page, whose value is the ``answer``; ``--size 500x900`` and ``--dark`` are the window's. Prints as
JSON the messages of its console, addresses it asked for, titles of its frames, and from the page
itself its headings, the images that did not load, and how far it is wider than the window. Needs
``pip install PyQt6-WebEngine``.
"""

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ |= {
    "QT_QPA_PLATFORM": "offscreen",
    "QT_QUICK_BACKEND": "software",
    # root and containers have neither; 0 is dark
    "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu"
    + " --blink-settings=preferredColorScheme=0" * ("--dark" in sys.argv),
}

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineUrlRequestInterceptor
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

LONGEST, SETTLED = 60_000, 500
"""Milliseconds until the process gives up, and from loading to the script, and to the look."""

LOOK = """({
  headings: Array.from(document.querySelectorAll("h1, h2, h3"), e => e.textContent),
  images: document.images.length,
  broken: Array.from(document.images).filter(i => !i.complete || !i.naturalWidth).map(i => i.alt),
  beyond: document.documentElement.scrollWidth - document.documentElement.clientWidth
})"""


class _Asked(QWebEngineUrlRequestInterceptor):
    """Note every address that is not inside the page."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def interceptRequest(self, info):  # noqa: N802 - Qt's name
        if info.requestUrl().scheme() != "data":
            self.addresses.append(info.requestUrl().toString())


class _Page(QWebEnginePage):
    def __init__(self, parent):
        super().__init__(parent)
        self.messages = []

    def javaScriptConsoleMessage(self, level, message, line, source):  # noqa: N802 - Qt's name
        self.messages.append(f"{level.name}: {message} ({source}:{line})")


def main(asked_for: argparse.Namespace) -> int:
    """Load a page, print what was seen, and take an image of its beginning.

    Args:
        asked_for: The words of the command line.
    """
    app, view, asked = QApplication(sys.argv[:1]), QWebEngineView(), _Asked()
    shown = _Page(view)
    shown.setUrlRequestInterceptor(asked)
    view.setPage(shown)
    view.resize(*map(int, asked_for.size.split("x")))
    view.show()

    def show(seen):
        print(json.dumps({**seen, "console": shown.messages, "asked": asked.addresses}))
        if asked_for.image is not None:
            view.grab().save(str(asked_for.image))
        app.exit(0)

    def look(answer):
        frames = shown.mainFrame().children()
        titles = ["" for _ in frames]
        for number, frame in enumerate(frames):
            frame.runJavaScript("document.title", partial(titles.__setitem__, number))
        more = {"answer": answer, "frames": titles}
        shown.runJavaScript(LOOK, lambda seen: show({**seen, **more}))

    def work():
        script = "null" if asked_for.script is None else asked_for.script.read_text()
        shown.runJavaScript(
            script, lambda answer: QTimer.singleShot(asked_for.wait, lambda: look(answer))
        )

    view.loadFinished.connect(lambda _: QTimer.singleShot(SETTLED, work))
    QTimer.singleShot(LONGEST, lambda: app.exit(1))
    view.load(QUrl.fromLocalFile(str(asked_for.page.resolve())))
    return app.exec()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--size", default="1200x1600")
    parser.add_argument("--wait", type=int, default=0, help="milliseconds from script to look")
    parser.add_argument("--dark", action="store_true")
    sys.exit(main(parser.parse_args()))
