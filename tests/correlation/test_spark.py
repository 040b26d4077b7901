"""Spark counts the same table as DuckDB, to the last byte; needs Java 17 and pyspark, and is skipped without."""

import os
import re
import shutil
import subprocess

import pytest

from tests.correlation.test_correlation import ALL, made_up, table_bytes
from wellread.correlation.counting import correlate
from wellread.correlation.engines import SparkEngine
from wellread.correlation.table import Correlation
from wellread.data.corpus import Corpus
from wellread.errors import InputError, MissingExtraError


def java_version():
    java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else shutil.which("java")
    if not java:
        return 0
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', version)
    return int(found[1]) if found else 0


def skip_without_spark():
    pytest.importorskip("pyspark", reason="Spark is not installed; run: pip install -e '.[spark]'")
    if java_version() < 17:
        pytest.skip("Spark needs Java 17 or later, and there is none here")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_counts_on_spark_as_on_duckdb(wellread, tmp_path, monkeypatch):
    skip_without_spark()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(made_up(200)))
    for name, options in [("duck", []), ("spark", ["--engine", "spark", "--master", "local[1]", "--memory", "1GB"])]:
        done = wellread("correlate", "corpus.txt", "--to", f"{name}.pmi", "--workers", "1", *options)
        assert done.code == 0, done.err
        assert done.out.startswith(f"{name}.pmi: ")
    spark, duck = (Correlation.load(tmp_path / f"{name}.pmi") for name in ("spark", "duck"))
    assert table_bytes(spark) == table_bytes(duck)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_and_duckdb_make_the_same_table(tmp_path):
    skip_without_spark()
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(made_up(400)))
    one = correlate(Corpus.of_files([path]), tmp_path / "duck.pmi", limits=ALL, workers=1)
    several = Corpus.of_files([path], shard_bytes=3000)
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    with SparkEngine("local[2]", memory=1 << 30, workers=2) as engine:
        assert engine.groups == 2
        other = correlate(several, tmp_path / "spark.pmi", limits=ALL, engine=engine)
        with pytest.raises(InputError, match="is not UTF-8"):
            correlate(Corpus.of_files([tmp_path / "bad.txt"]), tmp_path / "bad.pmi", engine=engine)
    assert len(several.shards) > 2
    assert table_bytes(other) == table_bytes(one)


def test_without_java_spark_names_its_requirement(monkeypatch, tmp_path):
    pytest.importorskip("pyspark", reason="Spark is not installed; run: pip install -e '.[spark]'")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingExtraError, match="Spark needs Java 17"):
        SparkEngine(None, memory=1 << 30, workers=1)
