"""Ranks with another program or other files than rank 0 are refused by name."""

from dataclasses import replace
from pathlib import Path

from emulator.suite.farm.messages import Greeting
from emulator.suite.farm.rank_facts import difference, facts_of, named_files

OWN = Greeting(machine="a", program="p", files={"pod.yaml": "1"})


def test_equal_ranks_differ_in_nothing() -> None:
    assert difference(OWN, replace(OWN, machine="b", files={**OWN.files, "more": "2"}), 1) is None
    words = ["run", "trace", __file__]
    assert facts_of(words) == facts_of(words)
    assert list(facts_of(words).files) == [__file__]


def test_each_difference_names_rank_and_machine() -> None:
    sentences = [
        difference(OWN, replace(OWN, machine="b", program="q"), 3),
        difference(OWN, replace(OWN, machine="b", files={}), 3),
        difference(OWN, replace(OWN, machine="b", files={"pod.yaml": "2"}), 3),
        difference(OWN, replace(OWN, machine="b", trouble="no disk"), 3),
    ]
    assert all(sentence and sentence.startswith("rank 3 on b") for sentence in sentences)
    assert "other sources" in str(sentences[0])
    assert "no file pod.yaml" in str(sentences[1])
    assert "another file pod.yaml" in str(sentences[2])
    assert "no disk" in str(sentences[3])


def test_files_are_found_alone_behind_an_equals_sign_and_in_lists(tmp_path: Path) -> None:
    one, two = tmp_path / "one.goal", tmp_path / "two.goal"
    one.write_text("1")
    two.write_text("2")
    words = ["run", "trace", str(one), "--param", f"files={one},{two}", "--topology=nowhere"]
    found = named_files(words)
    assert set(found) == {str(one), str(two)}
    assert found[str(one)] != found[str(two)]
