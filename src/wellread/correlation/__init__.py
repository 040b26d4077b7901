"""Word correlation (PMI), counted on DuckDB or Spark."""
