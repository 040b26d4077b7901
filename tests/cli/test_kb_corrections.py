"""`wellread kb corrections`: what users corrected, as gold documents."""

import json

from tests.servers import write_kbs
from wellread.kb.corrections import Correction, Corrections, corrections_path


def test_corrections_are_written_as_gold_documents(wellread, tmp_path):
    kb, _ = write_kbs(tmp_path)
    assert "make some on the page" in wellread("kb", "corrections", kb).err
    Corrections(corrections_path(kb.resolve())).add(Correction("Paris!", 0, 5, "Q90", "Paris"))
    gold = {"id": "c1", "text": "Paris!", "mentions": [[0, 5, "Q90", "Paris"]], "evaluate": [[0, 5]]}
    assert json.loads(wellread("kb", "corrections", kb).out) == gold
    assert wellread("kb", "corrections", kb, "--count").out == "1\n"
    done = wellread("kb", "corrections", kb, "--to", tmp_path / "gold.jsonl")
    assert (done.code, "1 corrections in 1 texts" in done.err) == (0, True)
    assert json.loads((tmp_path / "gold.jsonl").read_text()) == gold


def test_a_folder_without_them_is_an_error(wellread, tmp_path):
    kb, _ = write_kbs(tmp_path)
    done = wellread("kb", "corrections", kb, "--from", tmp_path)
    assert (done.code, "give the folder of wellread serve --corrections" in done.err) == (2, True)
