"""Open questions as they were released: where the passages lie that a recipe's questions are asked of."""

import gzip
import json
from dataclasses import replace

import pytest

from wellread import config
from wellread.data.readers.open_qa import OpenQuestion, read_searchqa
from wellread.errors import InputError, UsageError
from wellread.tasks.recipe import Data, QuestionOptions, TaskRecipe
from wellread.tasks.registry import read_examples, read_parts


def write_quasar(folder, parts=("train", "dev")):
    """As it was released: questions and contexts in folders of their own, the latter long or short, all compressed."""
    for part in parts:
        questions = [
            {"uid": f"{part}{number}", "question": f"Who {number}?", "answer": "Goethe"} for number in range(4)
        ]
        files = {"questions": questions}
        for size in ("long", "short"):
            found = [{"uid": one["uid"], "contexts": [[1.0, f"A {size} Goethe."]]} for one in questions]
            files[f"contexts/{size}"] = found
        for place, rows in files.items():
            (folder / place).mkdir(parents=True, exist_ok=True)
            with gzip.open(folder / place / f"{part}_{place.partition('/')[0]}.json.gz", "wt") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


def test_quasar_is_read_as_it_was_released_with_contexts_that_the_recipe_names(tmp_path):
    write_quasar(tmp_path)
    data = Data("questions/train_questions.json", root=str(tmp_path), dev="questions/dev_questions.json")
    recipe = TaskRecipe("openqa", data=data, questions=QuestionOptions(layout="quasar", contexts="contexts/short"))
    train, dev = read_parts(recipe.settings, {})
    assert {one.id for one in dev} == {f"dev{number}" for number in range(4)}
    assert {one.passages for one in (*train, *dev)} == {("A short Goethe.",)}
    one_file = config.override(recipe, ["questions.contexts=contexts/long/dev_contexts.json"])
    (first, *_) = read_examples(one_file.settings, {}, str(tmp_path / "questions/dev_questions.json.gz"))
    assert first.passages == ("A long Goethe.",)
    beside = replace(recipe, questions=QuestionOptions(layout="quasar"))
    with pytest.raises(
        InputError, match=r"passages of .*train_questions.json.gz are not in .*--set questions.contexts=F"
    ):
        read_parts(beside.settings, {})
    for size in ("long", "short"):
        for part in ("train", "dev"):
            (tmp_path / f"contexts/{size}/{part}_contexts.json.gz").rename(
                tmp_path / f"questions/{part}_contexts.json.gz"
            )
    assert {one.passages for one in read_parts(beside.settings, {})[0]} == {("A short Goethe.",)}
    with pytest.raises(UsageError, match="searchqa files contain the passages; remove contexts"):
        QuestionOptions(layout="searchqa", contexts="there")


def test_searchqa_is_read_from_a_folder_with_a_file_for_each_question(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    with pytest.raises(InputError, match=r"train has no \.json files; give the folder that they are in"):
        list(read_searchqa(folder))
    for number in (2, 1):
        record = {"question": f"q{number}", "answer": "Goethe", "search_results": [{"snippet": f"By G. {number}"}]}
        (folder / f"00{number}.json").write_text(json.dumps(record, indent=2))
    (folder / "003.json").write_text('{"question": ')
    skipped = []
    assert list(read_searchqa(folder, skipped=skipped)) == [
        OpenQuestion("001", "q1", ("Goethe",), ("By G. 1",)),
        OpenQuestion("002", "q2", ("Goethe",), ("By G. 2",)),
    ]
    assert "003.json is not JSON" in skipped[0]
