"""Word correlation (PMI) of a corpus, counted on DuckDB or Spark.

Data flow: `events` (text to words per event) → `pairs` (counts of word pairs) → `pmi` (table of correlated words) →
`table` (lookup). `counting` runs these steps, `engines` are where they run.
"""
