"""Spark annotates as one machine does; needs Java 17, pyspark and pandas, and is skipped without."""

import pytest

from tests.correlation.test_spark import java_version
from tests.integrations.test_annotate import bytes_of, some_texts
from wellread import Linker
from wellread.errors import InputError, UsageError
from wellread.integrations.annotate import annotate
from wellread.integrations.arrow_batches import Annotation
from wellread.kb.store import KnowledgeBase

pytest.importorskip("pyspark", reason="Spark is not installed; run: pip install -e '.[spark]'")
pytest.importorskip("pandas", reason="Spark's mapInArrow needs pandas; run: pip install -e '.[spark]'")


@pytest.fixture(scope="module")
def session():
    if java_version() < 17:
        pytest.skip("Spark needs Java 17 or later, and there is none here")
    from wellread.correlation.engines import SparkEngine

    with SparkEngine("local[2]", memory=1 << 30, workers=2):
        from pyspark.sql import SparkSession

        yield SparkSession.getActiveSession()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_frame_is_linked_as_the_linker_does(session, toy, tmp_path):
    from wellread.integrations.spark import annotate_frame

    texts = [f"who is the mayor of {name}" for name in ("cork", "avon", "brno", "xyzzy", "essen", "ada")] * 3
    frame = session.createDataFrame([(number, text) for number, text in enumerate(texts)], "key int, body string")
    # What is sent is all there is: a copy of the toy, deleted before Spark begins.
    import shutil

    shutil.copytree(toy, tmp_path / "toy")
    how = Annotation(
        (str(tmp_path / "toy" / "toy.kb"),), model=str(tmp_path / "toy" / "model"), settings={"precision": "fp32"}
    )
    found = annotate_frame(frame, how, text="body", id="key")
    shutil.rmtree(tmp_path / "toy")
    rows = sorted(found.collect(), key=lambda row: int(row.id))
    with Linker.load(toy / "toy.kb", toy / "model", precision="fp32") as linker:
        expected = list(linker.link_many(texts))
    assert [(row.id, row.text) for row in rows] == [(str(number), text) for number, text in enumerate(texts)]
    assert [[link.entity for link in row.links] for row in rows] == [
        [link.entity for link in document.links] for document in expected
    ]
    assert [link.score for row in rows for link in row.links] == pytest.approx(
        [link.score for document in expected for link in document.links], abs=1e-5
    )
    with pytest.raises(UsageError, match=r"no column text \(but key, body\)"):
        annotate_frame(frame, how)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_makes_the_same_parts(session, tmp_path):
    from tests.kb.conftest import CITIES, build_kb

    build_kb(tmp_path / "cities.kb", CITIES)
    how = Annotation((str(tmp_path / "cities.kb"),), model="prior")
    (tmp_path / "a.txt").write_text("\n".join(some_texts(200)), "utf-8")
    for engine in ("local", "spark"):
        annotate([tmp_path / "a.txt"], tmp_path / engine, how, engine=engine, workers=1, shard_bytes=1500)
    assert bytes_of(tmp_path / "spark") == bytes_of(tmp_path / "local")
    assert len(bytes_of(tmp_path / "spark")) > 2
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="is not UTF-8"):
        annotate([tmp_path / "bad.txt"], tmp_path / "bad", how, engine="spark")
    KnowledgeBase.open(tmp_path / "cities.kb").close()
