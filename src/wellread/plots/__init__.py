"""HTML pages and plots: linked text, attention, training curves, reports of comparisons."""

from __future__ import annotations

from wellread.plots.text_page import Describe, linked_page

__all__ = ["Describe", "linked_page"]
