"""The page for people: one document that needs nothing else, and what it shows, as JSON."""

from sweeperd.page.document import Document
from sweeperd.page.report import report

__all__ = ["Document", "report"]
