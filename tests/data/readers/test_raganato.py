"""Several data sets of senses at once: every instance keeps an answer of its own, and every data set its score."""

from dataclasses import replace

import pytest

from tests.sense_data import AGED, MONEY, SHORE, TEXTS, WALK, WORK, keys, sense_text
from tests.tasks.test_senses import GOLD, XML
from wellread.data.readers.raganato import join_sentences, read_data_sets, read_senses, write_lines_of_senses
from wellread.errors import InputError
from wellread.evaluation.senses import score_by_part
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.tasks.recipe import TaskRecipe
from wellread.tasks.registry import TASKS

FIRST = [
    sense_text("d000.s000", "the old river near the bank", source="", bank=SHORE, old=AGED),
    sense_text("d000.s001", "it is", source=""),
    sense_text("d000.s002", "buy the bank", source="", bank=MONEY),
]
SECOND = [
    sense_text("d000.s000", "run near the river bank", source="", run=WALK, bank=SHORE),
    sense_text("d000.s001", "who is to run the city", source="", run=WORK),
]


def write_both(folder):
    """Two files whose ids start alike, and whose lines do not say what they are of."""
    write_lines_of_senses(folder / "one.jsonl", FIRST)
    write_lines_of_senses(folder / "two.jsonl", SECOND)
    return [folder / "one.jsonl", folder / "two.jsonl"]


def write_xml(folder, name, source, prefix=""):
    xml, gold = (text.replace("d00", f"{prefix}d00") for text in (XML, GOLD))
    (folder / f"{name}.data.xml").write_text(xml.replace('source="toy"', source))
    (folder / f"{name}.gold.key.txt").write_text(gold)
    return folder / f"{name}.data.xml"


def instances(files):
    return [mark.instance for texts in files for text in texts for mark in text.marks]


def test_ids_that_files_share_begin_with_their_data_set(tmp_path):
    files = read_data_sets(write_both(tmp_path))
    assert [text.id for text in files[0]] == ["one.d000.s000", "one.d000.s001", "one.d000.s002"]
    assert [instance.id for instance in instances(files)] == [
        "one.d000.s000.t000",
        "one.d000.s000.t001",
        "one.d000.s002.t000",
        "two.d000.s000.t000",
        "two.d000.s000.t001",
        "two.d000.s001.t000",
    ]
    assert len(list(join_sentences([text for some in files for text in some], 9))) == 2  # of two documents


def test_ids_that_are_shared_by_none_stay_as_they_are(tmp_path):
    one, two = write_both(tmp_path)
    assert read_data_sets([one]) == [list(read_senses(one))]
    write_lines_of_senses(two, [replace(TEXTS[0], id="e.9")])
    assert [text.id for text in read_data_sets([one, two])[1]] == ["e.9"]


def test_the_framework_s_files_get_the_ids_that_its_file_of_all_has(tmp_path):
    both = [write_xml(tmp_path, name, f'source="{name}"') for name in ("senseval2", "senseval3")]
    alls = [write_xml(tmp_path, f"all{name}", 'source="all"', f"{name}.") for name in ("senseval2", "senseval3")]
    named = read_data_sets(both)
    assert named == read_data_sets(alls)
    assert named[0][0].marks[0].instance.id == "senseval2.d000.s000.t000"
    nameless = [write_xml(tmp_path, name, "") for name in ("mine", "yours")]
    assert [text.id for text in read_data_sets(nameless)[1]][:2] == ["yours.d000.s000", "yours.d000.s001"]


def test_one_data_set_twice_is_refused(tmp_path):
    one, _ = write_both(tmp_path)
    with pytest.raises(InputError, match=r"two instances have the id 'one\.d000\.s000\.t000'.* give each dataset once"):
        read_data_sets([one, one])
    write_lines_of_senses(one, [FIRST[0], FIRST[0]])
    with pytest.raises(InputError, match="unique instance ids"):
        read_data_sets([one])


def test_scores_refuse_instances_that_share_an_id():
    some = instances([FIRST, SECOND])
    with pytest.raises(InputError, match=r"two instances have the id 'd000\.s000\.t000'"):
        score_by_part(some, {})


def test_a_pattern_of_a_recipe_keeps_instances_apart_too(tmp_path, monkeypatch):
    write_both(tmp_path)
    monkeypatch.setattr(SenseKeys, "read", classmethod(lambda cls, folder=None: keys()))
    texts = list(TASKS["senses"].read(TaskRecipe("senses").settings, {}, str(tmp_path / "*.jsonl"), []))
    assert len({mark.instance.id for text in texts for mark in text.marks}) == 6
