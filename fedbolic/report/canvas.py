"""Canvases of matplotlib (the extra ``plots``), written as SVG, or as PNG with a digest."""

import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING

from fedbolic import __version__
from fedbolic.core.checksums import text_digest
from fedbolic.core.imports import extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def installed() -> bool:
    """True if matplotlib, the extra ``plots``, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def new_canvas(width: float, height: float) -> "Figure":
    """An empty matplotlib figure that needs no display.

    Args:
        width: Inches.
        height: Inches.
    """
    with extra("plots", "a plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    canvas = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def svg(canvas: "Figure") -> bytes:
    """An image with its text as text, and equal for equal numbers."""
    with extra("plots", "a plot"):
        import matplotlib

    text_as_text = matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedbolic"})
    with text_as_text, io.BytesIO() as file:
        canvas.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()


def shown_digest(shown: object) -> str:
    """Digest of what a file shows, which :func:`save` writes into it."""
    return f"fedbolic {__version__} {text_digest(repr(shown).encode())}"


def is_shown(file: Path, digest: str) -> bool:
    """True if a PNG file shows what has this digest."""
    if not file.exists():
        return False
    with file.open("rb") as stream:
        return digest.encode() in stream.read(1024)  # texts stand before the pixels


def save(canvas: "Figure", file: Path, digest: str) -> None:
    """Write a PNG file with the digest of what it shows."""
    draft = file.with_suffix(".png.draft")
    canvas.savefig(draft, dpi=120, format="png", metadata={"Comment": digest})
    draft.replace(file)  # atomic, so that an existing file is always complete
