from collections import Counter

from nein.generate.negvqa import Choice, balance_letters, wrong_option


def item(number, subset="GQA"):
    return Choice(str(number), subset, b"x", "What is on it?", ("cat", "dog", "car", "bench"), number % 4)


ITEMS = [item(number, ("GQA", "VQAv2")[number % 2]) for number in range(401)]


def test_balanced_letters_are_even_in_every_subset():
    letters = balance_letters(ITEMS, 1234)
    for subset in ("GQA", "VQAv2"):
        counts = Counter(letters[it.id] for it in ITEMS if it.subset == subset)
        assert abs(counts["A"] - counts["B"]) <= 1


def test_letters_depend_on_seed_and_item_not_on_order():
    assert balance_letters(ITEMS, 1234) == balance_letters(ITEMS[::-1], 1234)
    assert balance_letters(ITEMS, 5) != balance_letters(ITEMS, 1234)


def test_every_wrong_option_has_its_chance_and_the_right_one_none():
    counts = Counter(wrong_option(item(4 * number), 1234) for number in range(600))
    assert set(counts) == {"dog", "car", "bench"}
    assert min(counts.values()) > 150
