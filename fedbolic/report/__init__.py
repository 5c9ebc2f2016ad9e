"""Tables, plots and pages about runs, as text and as one page for a browser."""

from fedbolic.report.html_report import write_page
from fedbolic.report.text_report import report

__all__ = ["report", "write_page"]
