"""Pictures for people: the page of linked text, and plots of how a training went."""

from __future__ import annotations

from wellread.plots.text_page import Describe, linked_page

__all__ = ["Describe", "linked_page"]
