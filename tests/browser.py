"""Look at a page in Chromium, without a display: ``python tests/browser.py PAGE [IMAGE.png]``.

Prints as JSON the messages of its console, addresses it asked for, and from the page
itself its headings, the images that did not load, and how far it is wider than the window. Needs
``pip install PyQt6-WebEngine``.
"""

import json
import os
import sys
from pathlib import Path

os.environ |= {
    "QT_QPA_PLATFORM": "offscreen",
    "QT_QUICK_BACKEND": "software",
    "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu",  # root and containers have none
}

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineUrlRequestInterceptor
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

WIDTH, HEIGHT = 1200, 1600
LONGEST, SETTLED = 60_000, 500
"""Milliseconds until the process gives up, and between the end of loading and the look."""

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


def main(page: Path, image: Path | None) -> int:
    """Load a page, print what was seen, and take a image of its beginning.

    Args:
        page: HTML file.
        image: PNG file to write, or ``None``.
    """
    app, view, asked = QApplication(sys.argv[:1]), QWebEngineView(), _Asked()
    shown = _Page(view)
    shown.setUrlRequestInterceptor(asked)
    view.setPage(shown)
    view.resize(WIDTH, HEIGHT)
    view.show()

    def show(seen):
        print(json.dumps({**seen, "console": shown.messages, "asked": asked.addresses}))
        if image is not None:
            view.grab().save(str(image))
        app.exit(0)

    view.loadFinished.connect(lambda _: QTimer.singleShot(SETTLED, look))

    def look():
        shown.runJavaScript(LOOK, show)

    QTimer.singleShot(LONGEST, lambda: app.exit(1))
    view.load(QUrl.fromLocalFile(str(page.resolve())))
    return app.exec()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
