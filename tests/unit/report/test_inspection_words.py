"""Pages of an inspection: counts that add up, whole words, colours that can be read."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers

from attsvm_pretrained.inspection.finding import Example
from attsvm_pretrained.report.inspection import WHITE_FROM, cell, change, chip, distinction, headline
from attsvm_pretrained.report.tokens import TokenText, _byte_letters
from attsvm_pretrained.selection.null import Standing
from attsvm_pretrained.selection.types import HeadTypes, TypeScore

FAR = Standing(0.1, np.linspace(0.0, 0.3, 15), np.linspace(0.6, 0.9, 15))


def head(name: str | None = None, types: HeadTypes | None = None, words: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        report=SimpleNamespace(verdict="soft"),
        types=types or SimpleNamespace(name=name),
        audit=SimpleNamespace(better_than_null=False, null={"cosine": FAR}),
        shows=(),
        examples=(Example(words, (1.0,) * len(words), 0),),
    )


def test_the_counts_of_the_headline_add_up() -> None:
    names = ["previous"] * 56 + ["content"] * 2 + ["first"] * 2 + ["offset", "induction", "delimiter"] + [None] * 9
    text = headline(SimpleNamespace(heads=[head(name) for name in names], refused=(), model="m"))  # pyright: ignore
    assert "63 have a named type (56 previous, 2 content, 2 first, 3 of other types)" in text
    # 15 rotated draws: the probability of Student's t with 14 degrees of freedom beyond 3 / sqrt(16 / 15) is .0058.
    assert "(by chance, about 0.4 of 72 would be)" in text
    assert "other types" not in headline(SimpleNamespace(heads=[head("first")], refused=(), model="m"))  # pyright: ignore


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (("A", "Ġf", "ish", "Ġnamed", "ĠN", "em", "o"), "A fish named Nemo"),
        (("▁A", "▁f", "ish", "▁named", "▁N", "em", "o"), "A fish named Nemo"),
        (("[CLS]", "a", "fish", "named", "ne", "##mo"), "[CLS] a fish named nemo"),
    ],
)
def test_words_of_several_tokens_stay_whole(tokens: tuple[str, ...], text: str) -> None:
    assert _joined(TokenText([tokens])(tokens)) == text


def _joined(words: list[tuple[str, bool]]) -> str:
    return "".join(f"{' ' * (spaced and k > 0)}{shown}" for k, (shown, spaced) in enumerate(words))


def test_bytes_become_characters() -> None:
    """A tokenizer of bytes, trained here: every text reads as it was; parts of a character are marked."""
    texts = ["It’s naïve – “café” costs 5 €; 東京 is in 日本 🙂", "one line\nand another one"]
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(["It is one line and another one, in a café"] * 9, vocab_size=300)
    tokens = [bpe.encode(text).tokens for text in texts]
    words = [TokenText(tokens)(one) for one in tokens]
    assert [_joined(one).replace("·", "").replace("↵", "\n") for one in words] == texts
    assert [shown for shown, _ in TokenText(tokens)(bpe.encode(" 東 a").tokens)] == [" ", "·", "·", "東", "a"]


def test_every_byte_of_a_text_is_read_back() -> None:
    """All characters of one and of two bytes, as one token; the first token shows that the tokenizer writes bytes."""
    text = "".join(chr(code) for code in range(0x800) if chr(code) not in " \n")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ((token, _),) = byte_level.pre_tokenize_str(text)
    assert TokenText([("Ġ", token)])([token]) == [(text, False)]
    letters = _byte_letters()
    assert bytes(letters[letter] for letter in token) == text.encode()
    assert letters.keys() == set(byte_level.alphabet())
    assert sorted(letters.values()) == list(range(256))


@pytest.mark.parametrize("word", ["ń", "日"])
def test_letters_that_write_no_byte_are_left_as_they_are(word: str) -> None:
    """The letter ń follows the last of the letters that write bytes."""
    tokens = ("Ġa", word)
    assert TokenText([tokens])(tokens) == [("a", True), (word, False)]


@pytest.mark.parametrize(("value", "text"), [(0.0123, "+0.012"), (-0.5, "−0.500"), (-1e-5, "0.000"), (0.0, "0.000")])
def test_a_change_that_is_nothing_has_no_sign(value: float, text: str) -> None:
    assert change(value) == text


def test_the_last_column_tells_heads_apart() -> None:
    """Both heads look at the first token most of the time, as untrained heads on these texts do."""

    def types(induction: float) -> HeadTypes:
        scores = {
            "first": TypeScore(20, 0.1, Standing(0.8, np.full(5, 0.75), np.zeros(5))),
            "induction": TypeScore(20, 0.1, Standing(induction, np.full(5, 0.05), np.zeros(5))),
        }
        return HeadTypes(scores, None, None, np.zeros(0, dtype=int))

    assert distinction(head(types=types(0.2))) == "induction 20 % (null 5 %)"
    assert distinction(head(types=types(0.1))) == "first 80 % (null 75 %)"


def _contrast(ground: list[float], ink: list[float]) -> float:
    light, dark = sorted((_luminance(ground), _luminance(ink)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: list[float]) -> float:
    """Relative luminance of an sRGB colour (WCAG 2)."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in colour)]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


BLACK, WHITE, DARK_PAGE = [0.0] * 3, [255.0] * 3, [23.0, 25.0, 28.0]


def test_every_shade_of_a_map_has_a_contrast_of_four_and_a_half() -> None:
    for shade in [*np.linspace(0.0, 1.0, 1001), WHITE_FROM]:
        style = cell(shade)
        ground = [float(value) for value in re.findall(r"rgb\((\d+),(\d+),(\d+)\)", style)[0]]
        assert _contrast(ground, WHITE if style.endswith("#fff") else BLACK) >= 4.5


@pytest.mark.parametrize("page", [WHITE, DARK_PAGE], ids=["light", "dark"])
def test_every_token_has_a_contrast_of_four_and_a_half(page: list[float]) -> None:
    for p in np.linspace(0.0, 1.0, 1001):
        opacity, strong = chip(float(p))
        ground = [opacity * blue + (1 - opacity) * under for blue, under in zip((31, 90, 153), page, strict=True)]
        assert _contrast(ground, WHITE if strong or page is DARK_PAGE else BLACK) >= 4.5
