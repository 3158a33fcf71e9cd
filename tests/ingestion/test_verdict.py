"""Why photos have no pose."""

from __future__ import annotations

from raymine.ingestion.photos import Photo
from raymine.ingestion.verdict import advice, judge


def photo(name: str, sharpness: float = 100.0, brightness: float = 120.0) -> Photo:
    return Photo(name, name, 640, 480, "640x480", None, sharpness, brightness)


PHOTOS = [photo(f"{i}.jpg") for i in range(8)]
ALL = {f"{i}.jpg": 1000 for i in range(12)}


def words(photos: list[Photo], pairs: list[tuple[str, str, int]], *models: list[str], features: int = 1000) -> str:
    """What is said about the last photo."""
    known = {**ALL, photos[-1].name: features}
    verdict = judge(photos, known, pairs, [{"images": dict.fromkeys(model, 50)} for model in models])[-1]
    assert bool(verdict.why) == bool(verdict.hints)
    return " ".join(verdict.why)


def test_photo_with_a_pose_and_no_fault_needs_no_words() -> None:
    verdicts = judge(PHOTOS, ALL, [("0.jpg", "1.jpg", 40)], [{"images": {"0.jpg": 7, "1.jpg": 8}}])
    assert [verdict.registered for verdict in verdicts] == [True, True] + [False] * 6
    assert verdicts[0].points == 7
    assert verdicts[0].neighbours == 1
    assert not verdicts[0].why


def test_faults_of_the_picture() -> None:
    registered = [each.name for each in PHOTOS]
    assert "blurred: 20%" in words([*PHOTOS, photo("8.jpg", sharpness=20)], [], registered)
    assert "dark" in words([*PHOTOS, photo("8.jpg", brightness=5)], [], registered)
    assert "overexposed" in words([*PHOTOS, photo("8.jpg", brightness=250)], [], registered)
    assert "little texture: 12" in words([*PHOTOS, photo("8.jpg")], [], registered, features=12)


def test_faults_of_the_matches() -> None:
    photos, rest = [*PHOTOS, photo("8.jpg")], [each.name for each in PHOTOS]
    assert "too little overlap" in words(photos, [("0.jpg", "8.jpg", 12)], rest)
    assert "Only one other photo shows" in words(photos, [("0.jpg", "8.jpg", 40)], rest)
    many = [(f"{i}.jpg", "8.jpg", 40) for i in range(4)]
    assert "contradict" in words(photos, many, rest)
    assert "separate group of 3" in words(photos, many, rest, ["8.jpg", "x", "y"])


def test_advice_counts_what_would_help() -> None:
    registered = {"images": {each.name: 5 for each in PHOTOS}}
    assert advice(judge(PHOTOS, ALL, [], [registered]), 1) == ["Every photo has a pose."]
    lonely = judge(PHOTOS, ALL, [], [{"images": {"0.jpg": 5}}])
    said = advice(lonely, 2)
    assert "2 groups" in said[0]
    assert "closer together" in said[1]
    assert "(7 photos)" in said[1]
    assert "new capture" in said[-1]
