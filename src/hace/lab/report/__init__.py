"""The report of a study: tables, figures, and one page that holds both."""

from __future__ import annotations

from hace.lab.report.writing import PAGE, About, about_study, write_records, write_report

__all__ = ["PAGE", "About", "about_study", "write_records", "write_report"]
