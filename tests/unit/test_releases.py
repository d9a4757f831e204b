import pytest

from predictor.releases import release_number


def test_releases_order() -> None:
    texts = ("1.9", "1.10", "1.10.2", "2.1.0", "2.4", "2.10", "2.13.0+cpu")
    numbers = [release_number(text) for text in texts]
    assert numbers == sorted(numbers)
    assert numbers[1] == numbers[2] == 1.1
    assert numbers[-1] == 2.13


@pytest.mark.parametrize("text", ["", "2", "two.four", "2.4 ", "2.4.", "v2.4", "2.400"])
def test_other_text_is_no_release(text: str) -> None:
    assert release_number(text) == 0
