"""The report of a study: tables, figures, and one page with both.

page = write_report("STUDY")                   the page and its files; `sections=` adds your own
Results(read_study("STUDY").records())         chosen runs, scores and differences, for tables and figures of your own
report_text(records)                           the summary for the terminal
"""

from __future__ import annotations

from hace.lab.report.document import Document, Entry, ReportTable, Section, SectionBuilder
from hace.lab.report.results import Results
from hace.lab.report.study_report import PAGE, About, about_study, report_text, write_records, write_report

__all__ = ["PAGE", "About", "Document", "Entry", "ReportTable", "Results", "Section", "SectionBuilder"]
__all__ += ["about_study", "report_text", "write_records", "write_report"]
