"""Files of priors, as KnowBERT's authors have them, become knowledge bases."""

import pytest

from wellread.errors import InputError
from wellread.kb.build import Origin, build
from wellread.kb.packaged import open_kb
from wellread.kb.readers.priors import read_ids, read_priors
from wellread.kb.records import Tally

LINES = [
    "France\t1000\t5843419,0.85,France\t250197,0.1,France_national_football_team\t7,0.05,Anatole_France\t",
    "Foix\t20\t12,0.5,Foix,_Ariège\t5843419,0.25,France",
    "FRANCE\t10\t250197,1.0,France_national_football_team",
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "priors.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def build_kb(file, to, **options):
    tally = Tally()
    build(lambda tally: read_priors(file, tally, **options), to, origin=Origin("priors"), tally=tally)
    return tally


def priors(kb, name, **options):
    return {one.entity: pytest.approx(one.prior, abs=1e-3) for one in kb.candidates(name, **options)}


def test_shares_of_mentions_are_the_priors_of_their_names(file, tmp_path):
    tally = build_kb(file, tmp_path / "wiki.kb")
    assert (tally.read, tally.skipped) == (3, {})
    with open_kb(tmp_path / "wiki.kb") as kb:
        assert len(kb) == 4
        assert kb.get("Foix,_Ariège").title == "Foix, Ariège"
        assert kb.get("France").popularity == 850
        found = kb.candidates("France", case="exact")
        assert [one.entity for one in found] == ["France", "France_national_football_team", "Anatole_France"]
        # the title of an entity counts once more, and as many as were seen decide
        assert priors(kb, "France", case="exact") == {
            "France": 0.85,
            "France_national_football_team": 0.1,
            "Anatole_France": 0.05,
        }
        assert priors(kb, "Foix") == {"Foix,_Ariège": 2 / 3, "France": 1 / 3}  # shares that do not add up to 1


def test_only_so_many_candidates_of_those_that_are_asked_for(file, tmp_path):
    (tmp_path / "entity.txt").write_text("@@UNKNOWN@@\nAnatole_France\nFrance\n\n")
    among = read_ids(tmp_path / "entity.txt")
    tally = build_kb(file, tmp_path / "some.kb", candidates=1, among=among)
    assert tally.skipped == {"mention without an entity that is asked for": 1}
    with open_kb(tmp_path / "some.kb") as kb:
        assert [one.entity for one in kb.candidates("France")] == ["France"]
        assert [one.entity for one in kb.candidates("Foix")] == ["France"]
        assert len(kb) == 1
    build_kb(file, tmp_path / "two.kb", candidates=2, among=among)
    with open_kb(tmp_path / "two.kb") as kb:
        assert [one.entity for one in kb.candidates("France")] == ["France", "Anatole_France"]


def test_broken_lines_are_left_out_and_reported(tmp_path):
    path = tmp_path / "priors.txt"
    broken = [
        "Mention\tmany\t1,0.5,A",
        "Mention\t3",
        "Mention\t3\t1,0.5",
        "Mention\t3\tx,0.5,A",
        f"Mention\t3\t{10**18},0.5,A",
        "\t3\t1,0.5,A",
    ]
    path.write_text("\n".join([LINES[0], *broken]))
    tally = build_kb(path, tmp_path / "wiki.kb")
    assert tally.skipped == {"broken line": 6}
    assert tally.first_place == {"broken line": "line 2"}


@pytest.mark.parametrize("text", ["", "id,title\n" * 200, "a\tb\n"])
def test_what_is_no_file_of_priors_is_refused(tmp_path, text):
    path = tmp_path / "priors.txt"
    path.write_text(text)
    with pytest.raises(InputError, match="is not a file of priors: expected lines of a mention"):
        list(read_priors(path, Tally()))


def test_the_command_builds_it(wellread, file, tmp_path):
    (tmp_path / "entity.txt").write_text("France\n")
    to = tmp_path / "wiki.kb"
    result = wellread("kb", "build", "priors", file, "--to", to, "--entities", tmp_path / "entity.txt")
    assert (result.code, result.out) == (0, f"{to}: 1 entities\n")
    assert wellread("kb", "build", "priors", file, "--to", to, "--replace", "--candidates", 1).out.endswith(
        ": 3 entities\n"
    )
    refused = wellread("kb", "build", "csv", file, "--to", to, "--replace", "--candidates", 1)
    assert refused.code == 2
    assert "--candidates belongs to the source priors, not to csv" in refused.err
