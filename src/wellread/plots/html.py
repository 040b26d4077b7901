"""What all pages are in: one HTML file that fetches nothing, and runs no script but those that it names."""

from __future__ import annotations

_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
    | {chr(code): chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
    | {"\x7f": "\u2421"}
    | {chr(code): "\ufffd" for code in (*range(0x80, 0xA0), *range(0xD800, 0xE000))}
)
"""HTML's own signs, and those it does not allow: control characters are shown by their pictures (␀)."""


def escape(text: str) -> str:
    """A text as it may stand in HTML, and in its attributes."""
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_ESCAPES)


def shell(title: str, *, style: str, header: str, main: str, allowed: str = "", behind: str = "") -> str:
    """A page with its title as heading, and `behind` its main part scripts and their data.

    `allowed` is what its policy has beside styles, such as "img-src data:".
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
