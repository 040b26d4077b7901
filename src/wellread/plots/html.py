"""Frame of all HTML pages: one file that loads nothing, with a content security policy."""

from __future__ import annotations

_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
    | {chr(code): chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
    | {"\x7f": "\u2421"}
    | {chr(code): "\ufffd" for code in (*range(0x80, 0xA0), *range(0xD800, 0xE000))}
)
"""Escapes of HTML's special characters; control characters are shown as their symbols (␀)."""


def escape(text: str) -> str:
    """Escape a text for HTML content and attributes."""
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_ESCAPES)


def shell(title: str, *, style: str, header: str, main: str, allowed: str = "", behind: str = "") -> str:
    """Return a page with its title as heading; `behind` is placed after the main part: scripts and their data.

    `allowed` extends the content security policy, e.g. "img-src data:".
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'" + (f"; {allowed}" if allowed else "")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1><bdi>{escape(title)}</bdi></h1>
{header}
</header>
<main>
{main}
</main>
{behind}</body>
</html>
"""
