"""Concepts of the UMLS from small tables in the format of a release."""

import gzip

import pytest

from wellread import KnowledgeBase
from wellread.errors import InputError, UsageError
from wellread.kb.readers.umls import read_umls
from wellread.kb.records import XREF, Entity, Fact, OtherId, Tally

CONSO = """
C0000001|ENG|P|L1|PF|S1|Y|A1|||D1|MSH|MH|D000001|Heart attack|0|N|256|
C0000001|ENG|S|L2|PF|S2|Y|A2||22298006||SNOMEDCT_US|PT|22298006|Myocardial infarction|9|N|256|
C0000001|ENG|P|L1|PF|S1|N|A3||||MTH|PN|NOCODE|Heart attack|0|N||
C0000001|ENG|S|L3|PF|S3|Y|A4||22298006||SNOMEDCT_US|OAS|22298006|Cardiac infarction|9|O||
C0000001|FRE|S|L4|PF|S4|Y|A5|||D1|MSHFRE|MH|D000001|Infarctus du myocarde|3|N||
C0000002|ENG|P|L5|PF|S5|Y|A6||56265001||SNOMEDCT_US|PT|56265001|Heart disease|9|N|256|
C0000003|FRE|P|L6|PF|S6|Y|A7|||D3|MSHFRE|MH|D000003|Coeur|3|N||
"""
DEF = """
C0000001|A9|AT1||OLD|An old definition.|O||
C0000001|A1|AT2||MSH|NECROSIS of the  MYOCARDIUM.|N||
C0000003|A7|AT3||MSHFRE|Un organe.|N||
"""
STY = """
C0000001|T047|B2.2.1.2.1|Disease or Syndrome|AT4|256|
C0000002|T047|B2.2.1.2.1|Disease or Syndrome|AT5|256|
"""
REL = """
C0000002|A6|SCUI|CHD|C0000001|A2|SCUI|isa|R1|1|SNOMEDCT_US|SNOMEDCT_US||N|N||
C0000001|A2|SCUI|PAR|C0000002|A6|SCUI|inverse_isa|R2|1|SNOMEDCT_US|SNOMEDCT_US||Y|N||
C0000001|A1|AUI|SY|C0000001|A2|AUI||R3||MTH|MTH|||N||
C0000002|A6|CUI|RO|C0000001|A1|CUI||R4||MSH|MSH|||N||
C0000002|A6|CUI|RO|C0000001|A1|CUI|treats|R5||MSH|MSH|||O||
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "META").mkdir()
    for name, rows in (("MRCONSO", CONSO), ("MRDEF", DEF), ("MRSTY", STY), ("MRREL", REL)):
        (tmp_path / "META" / f"{name}.RRF").write_text(rows.lstrip(), "utf-8")
    return tmp_path / "META"


def read(folder, **how):
    tally = Tally()
    return list(read_umls(folder, tally, **how)), tally


def test_a_concept_is_an_entity_with_facts_and_codes(folder):
    records, tally = read(folder)
    assert records == [
        Entity(
            "C0000001",
            "Heart attack",
            "NECROSIS of the MYOCARDIUM.",
            "Disease or Syndrome",
            3,
            {"Heart attack": 3, "Myocardial infarction": 1},
        ),
        OtherId("MSH:D000001", "C0000001", XREF),
        OtherId("SNOMEDCT_US:22298006", "C0000001", XREF),
        Entity("C0000002", "Heart disease", "", "Disease or Syndrome", 1, {"Heart disease": 2}),
        OtherId("SNOMEDCT_US:56265001", "C0000002", XREF),
        Fact("C0000001", "isa", "C0000002"),  # the second concept is a child of the first
        Fact("C0000001", "RO", "C0000002"),
    ]
    assert tally.skipped == {
        "name in another language": 2,
        "suppressed name, or of another source": 1,
        "inverse of another relation": 1,
        "relation of a concept to itself or its synonym": 1,
        "suppressed relation, or of another source": 1,
    }


def test_language_sources_and_suppressed_choose_the_names(folder):
    assert [record.title for record in read(folder, language="fr")[0] if isinstance(record, Entity)] == [
        "Infarctus du myocarde",
        "Coeur",
    ]
    snomed = read(folder, sources=["SNOMEDCT_US"])[0]
    assert (snomed[0].title, snomed[0].description) == ("Myocardial infarction", "")
    assert read(folder, sources=["SNOMEDCT_US"], suppressed=True)[0][0].aliases == {
        "Myocardial infarction": 2,
        "Cardiac infarction": 1,
    }
    with pytest.raises(InputError, match=r"no name of MESH in en \(LAT ENG\); check --language and --sab"):
        read(folder, sources=["MESH"])


def test_tables_may_be_compressed_or_missing_and_in_a_folder_above(folder):
    whole = read(folder)[0]
    assert read(folder.parent)[0] == whole
    for path in list(folder.iterdir()):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert read(folder)[0] == whole
    for name in ("MRDEF", "MRSTY", "MRREL"):
        (folder / f"{name}.RRF.gz").unlink()
    bare = read(folder)[0]
    assert (bare[0].description, bare[0].kind) == ("", "")
    assert not any(isinstance(record, Fact) for record in bare)


def test_what_is_not_the_umls_is_refused(folder, tmp_path):
    (folder / "MRCONSO.RRF").write_text("C1|ENG|P|\n")
    with pytest.raises(InputError, match=r"MRCONSO.RRF, line 1: 3 fields, expected 18 \(CUI\|LAT"):
        read(folder)
    rows = CONSO.strip().splitlines()
    (folder / "MRCONSO.RRF").write_text("\n".join([*rows[-2:], *rows[:2]]))
    with pytest.raises(InputError, match=r"not in the order of CUIs \(C0000001 after C0000003\)"):
        read(folder)
    with pytest.raises(UsageError, match="is not a folder"):
        read(folder / "MRCONSO.RRF")
    (folder / "MRCONSO.RRF").unlink()
    with pytest.raises(InputError, match=r"has no MRCONSO\.RRF"):
        read(tmp_path)


def test_a_kb_from_the_umls(folder):
    with KnowledgeBase.from_umls(folder, licence="UMLS licence") as kb:
        assert kb.metadata["licence"] == "UMLS licence"
        assert [(near.relation, near.title) for near in kb.neighbours("C0000001")] == [
            ("RO", "Heart disease"),
            ("isa", "Heart disease"),
        ]
        assert kb.resolve("SNOMEDCT_US:22298006") == "C0000001"
