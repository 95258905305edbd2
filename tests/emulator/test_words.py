"""64-bit words, which compiled code has in registers, are those of C interpreted, too."""

from hypothesis import given
from hypothesis import strategies as st

from emulator.words import mixed, unsigned, word_of, wrapped

_WORD = 2**64 - 1


def _splitmix64(number: int) -> int:
    """SplitMix64's finalizer in numbers without a sign (Steele, Lea, Flood 2014)."""
    number = number + 0x9E3779B97F4A7C15 & _WORD
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _WORD
    return number ^ number >> 31


@given(st.integers(-(2**130), 2**130))
def test_a_word_equals_its_number_modulo_two_to_the_64(number: int) -> None:
    word = wrapped(number)
    assert -(2**63) <= word < 2**63
    assert word_of(number) == word
    assert unsigned(word) == number & _WORD


@given(st.integers(0, _WORD))
def test_mixed_is_splitmix64(number: int) -> None:
    assert unsigned(mixed(word_of(number))) == _splitmix64(number)
    assert unsigned(mixed(number)) == _splitmix64(number)


def test_mixed_has_the_first_output_for_seed_0_as_published() -> None:
    assert unsigned(mixed(0)) == 0xE220A8397B1DCDAF
