"""WordNet's own files: a tiny folder in the true format, and the real WordNet 3.0 where it is in the cache."""

import shutil

import pytest

from wellread import assets
from wellread.errors import InputError
from wellread.kb import build as module
from wellread.kb.build import Origin, build
from wellread.kb.check import check
from wellread.kb.packaged import build_packaged
from wellread.kb.readers.wordnet import read_wordnet
from wellread.kb.records import Entity, Form, Tally
from wellread.kb.store import KnowledgeBase

LICENCE = "  1 This software and database is being provided to you, the LICENSEE, by  \n  2 Princeton University  \n"
FILES = {
    "data.noun": LICENCE
    + "02084071 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 002 @ 02083346 n 0000 ~ 02085374 n 0000 "
    '| a member of the genus Canis; "the dog barked all night"  \n'
    "02083346 05 n 02 canine 0 canid 0 001 ~ 02084071 n 0000 | any of various fissiped mammals  \n"
    "02085374 05 n 01 toy_dog 0 002 @ 02084071 n 0000 + 00005041 v 0101 | any of several breeds  \n"
    "10114209 18 n 01 dog 1 001 ;u 07075172 n 0000 | informal term for a man | with a bar in its gloss  \n"
    "07075172 10 n 01 slang 0 001 -u 10114209 n 0000 | informal language  \n",
    "data.verb": LICENCE
    + "00005041 29 v 02 chase 0 dog 2 003 $ 00006697 v 0000 > 00006697 v 0000 + 02085374 n 0201 02 + 08 00 + 09 01 "
    "| go after with the intent to catch  \n"
    "00006697 29 v 01 run_after 0 000 01 + 08 00 | pursue  \n",
    "data.adj": LICENCE
    + "00013887 00 a 01 abundant 0 002 & 00014358 s 0000 ! 00016247 a 0101 | present in great quantity  \n"
    "00014358 00 s 02 abounding 0 galore(ip) 0 001 & 00013887 a 0000 | existing in abundance  \n"
    "00016247 00 a 01 ready_to_hand(p) 0 001 ! 00013887 a 0101 | easy to reach  \n",
    "data.adv": LICENCE + "00001740 02 r 01 abundantly 0 001 \\ 00013887 a 0101 | in an abundant manner  \n",
    "index.sense": "abounding%5:00:00:abundant:00 00014358 1 0\n"
    "abundant%3:00:00:: 00013887 1 4\n"
    "abundantly%4:02:00:: 00001740 1 0\n"
    "canine%1:05:00:: 02083346 2 0\n"
    "canis_familiaris%1:05:00:: 02084071 1 0\n"
    "dog%1:05:00:: 02084071 1 42\n"
    "dog%1:18:01:: 10114209 2 0\n"
    "dog%2:29:02:: 00005041 1 2\n"
    "galore%5:00:00:abundant:00 00014358 1 3\n",
    "noun.exc": "geese goose\naxes ax axis\n\ndogs_of_war dog_of_war\n",
    "verb.exc": "ran run\n",
    "adj.exc": "",
    "adv.exc": "best well\n",
}


@pytest.fixture
def folder(tmp_path):
    there = tmp_path / "dict"
    there.mkdir()
    for name, text in FILES.items():
        (there / name).write_text(text, encoding="utf-8")
    return there


@pytest.fixture
def wordnet(folder, tmp_path):
    build(lambda tally: read_wordnet(folder, tally), tmp_path / "wn.kb", origin=Origin("wordnet"))
    with KnowledgeBase.open(tmp_path / "wn.kb") as kb:
        yield kb


def test_a_synset_is_an_entity_with_its_words_and_gloss(wordnet):
    assert len(wordnet) == 11
    dog = wordnet.get("02084071-n")
    assert (dog.title, dog.kind) == ("dog", "n")
    assert dog.description == 'a member of the genus Canis; "the dog barked all night"'
    assert dict(dog.aliases) == {"dog": 43, "domestic dog": 1, "Canis familiaris": 1}
    assert dog.popularity == 42
    assert check(wordnet) == []


def test_a_gloss_may_hold_a_bar(wordnet):
    assert wordnet.get("10114209-n").description == "informal term for a man | with a bar in its gloss"


def test_sense_counts_are_priors_and_senses_keep_their_order(wordnet):
    found = wordnet.candidates("dog")
    assert [c.entity for c in found] == ["02084071-n", "00005041-v", "10114209-n"]
    assert [c.prior for c in found] == pytest.approx([43 / 47, 3 / 47, 1 / 47], abs=1e-6)
    assert wordnet.get("10114209-n").aliases["dog"] == pytest.approx(1 - 1e-6, abs=1e-9)
    assert [c.entity for c in wordnet.candidates("dog", kinds={"n"})] == ["02084071-n", "10114209-n"]


def test_satellites_are_adjectives_and_markers_are_no_part_of_a_word(wordnet):
    galore = wordnet.get("00014358-a")
    assert (galore.kind, dict(galore.aliases)) == ("a", {"abounding": 1, "galore": 4})
    assert [c.entity for c in wordnet.candidates("ready to hand")] == ["00016247-a"]
    assert galore.facts == (("similar to", "00013887-a"),)
    assert ("similar to", "00014358-a") in wordnet.get("00013887-a").facts


def test_all_pointers_are_facts_those_between_words_too(wordnet):
    def facts(id):
        return set(wordnet.get(id).facts)

    assert facts("02084071-n") == {("hypernym", "02083346-n"), ("hyponym", "02085374-n")}
    assert facts("02085374-n") == {("hypernym", "02084071-n"), ("derivationally related", "00005041-v")}
    assert facts("00005041-v") == {
        ("verb group", "00006697-v"),
        ("cause", "00006697-v"),
        ("derivationally related", "02085374-n"),
    }
    assert facts("00001740-r") == {("pertains to", "00013887-a")}
    assert facts("10114209-n") == {("domain usage", "07075172-n")}
    assert ("antonym", "00016247-a") in facts("00013887-a")


def test_exception_lists_are_forms(wordnet):
    assert set(wordnet.forms()) == {
        Form("geese", "goose", "n"),
        Form("axes", "ax", "n"),
        Form("axes", "axis", "n"),
        Form("dogs of war", "dog of war", "n"),
        Form("ran", "run", "v"),
        Form("best", "well", "r"),
    }


def test_a_folder_without_counts_or_exceptions_is_read_and_that_is_said(folder):
    for name in ("index.sense", "verb.exc"):
        (folder / name).unlink()
    tally = Tally()
    records = list(read_wordnet(folder, tally))
    assert sum(isinstance(record, Entity) for record in records) == tally.read == 11
    assert next(record for record in records if record.id == "02084071-n").aliases["dog"] == 1
    assert sorted(tally.skipped) == [
        "no index.sense: all senses of a word get the same prior",
        "no verb.exc: irregular forms are not known",
    ]


def test_a_folder_that_is_not_wordnet_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a WordNet database folder \(WNDB\): it has no data.noun, data.verb"):
        list(read_wordnet(tmp_path, Tally()))


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("data.verb", "00006697 29 v 01 run_after\n", "data.verb, line 5, is not a synset"),
        ("data.verb", "00006697 29 v 01 run 0 001 ? 00005041 v 0000 | x\n", "line 5, is not a synset .KeyError"),
        ("data.verb", "\n", "data.verb, line 5, is not a synset"),
        ("index.sense", "dog%1 02084071\n", "index.sense, line 10, is not a sense"),
        ("index.sense", "dog%9:05:00:: 02084071 1 42\n", "index.sense, line 10, is not a sense"),
        ("noun.exc", "caf\udce9 x\n", r"noun.exc, line 5 is not UTF-8 \(byte 3: 0xe9\)"),
    ],
)
def test_a_broken_line_is_named(folder, name, line, message):
    with open(folder / name, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(line)
    with pytest.raises(InputError, match=message):
        list(read_wordnet(folder, Tally()))


def test_a_killed_build_does_not_go_on_with_another_folder_of_the_same_name(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BATCH", 1)
    other = tmp_path / "other" / "dict"
    shutil.copytree(folder, other)
    (folder / "data.adv").write_text("broken\n")
    with pytest.raises(InputError):
        build_packaged("wordnet", tmp_path / "wn.kb", folder=folder, tally=Tally())
    (other / "data.noun").write_text("00000001 05 n 01 thing 0 000 | a thing  \n")
    build_packaged("wordnet", tmp_path / "wn.kb", folder=other, tally=Tally())
    with KnowledgeBase.open(tmp_path / "wn.kb") as kb:
        assert [entity.id for entity in kb.entities() if entity.kind == "n"] == ["00000001-n"]
        assert kb.metadata["inflection"] == "wordnet"
        assert str(tmp_path) not in str(kb.metadata)


def test_the_real_wordnet_is_complete():
    folder = next(iter(sorted((assets.home() / "assets").glob("wordnet-*"))), None)
    if folder is None:
        pytest.skip(f"WordNet is not in the cache ({assets.home()}); bring it with: wellread fetch wordnet")
    tally = Tally()
    synsets = [record for record in read_wordnet(folder, tally) if isinstance(record, Entity)]
    assert len({synset.id for synset in synsets}) == tally.read == 117_659
    assert sum(len(synset.aliases) for synset in synsets) == 206_978
    assert tally.done_bytes == tally.total_bytes
    assert tally.report() == []
