"""Tables as Markdown: names of any letters stay in their cells, as text."""

from wellread.training.compare.comparison import markdown, plain
from wellread.training.compare.tables import make_table


def test_a_name_cannot_end_its_row_or_be_a_tag():
    lines = markdown(("arm", "F1"), [("a\nb\r\nc\u2028d", "1"), ("<img src=x onerror=alert(1)>", "a|b")])
    assert lines == [
        "| arm | F1 |",
        "| --- | ---: |",
        "| a b c d | 1 |",
        "| &lt;img src=x onerror=alert(1)> | a/b |",
    ]


def test_lines_below_a_table_are_text_too():
    assert plain("- it failed:\n<script>") == "- it failed: &lt;script>"
    table = make_table({"<b>\nbold": {"RTE": [0.5, 0.6]}, "kam": {"RTE": [0.6, 0.7]}}, [0, 1])
    markdown = table.to_markdown()
    assert "<" not in markdown
    assert markdown.startswith("| arm |")
    assert "| &lt;b> bold |" in markdown
    assert 'against "&lt;b> bold"' in markdown
