"""The report of a study: a table of runs, a table of comparisons, and templates that make a page of them.

page = write_report("STUDY")                   the page and its files; `sections=` adds your own
results = Results(read_study("STUDY").records())
results.runs, results.chosen                   one row per run, and the runs that tables show
compare(pairs)                                 differences with intervals, corrected together
report_text(records)                           the summary for the terminal
"""

from __future__ import annotations

from hace.lab.report.about import About, about_study
from hace.lab.report.compare import Pair, compare
from hace.lab.report.document import Document, Entry, Section, SectionBuilder, Table
from hace.lab.report.results import Results
from hace.lab.report.study_report import PAGE, write_records, write_report
from hace.lab.report.summary import report_text

__all__ = ["PAGE", "About", "Document", "Entry", "Pair", "Results", "Section", "SectionBuilder", "Table"]
__all__ += ["about_study", "compare", "report_text", "write_records", "write_report"]
