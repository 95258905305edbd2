"""The store that the ranks of a script share."""

from emulator.torch_backend.calls import StoreAnswer, StoreCall
from emulator.torch_backend.shared_store import SharedStore


def test_a_key_is_there_from_the_time_at_which_it_was_set() -> None:
    store = SharedStore()
    asked = StoreCall(10, "wait", ("a", "b"))
    assert store.answer(StoreCall(20, "set", ("a",), b"1")) == StoreAnswer(20, None)
    assert store.answer(asked) is None
    assert store.answer(StoreCall(25, "add", ("b",), amount=3)) == StoreAnswer(25, 3)
    assert store.answer(asked) == StoreAnswer(25, b"1")
    assert store.answer(StoreCall(30, "count", ())) == StoreAnswer(30, 2)


def test_a_value_is_replaced_where_it_is_the_expected_one() -> None:
    store = SharedStore()
    for value, found in ((b"\0one", b"one"), (b"none\0two", b"one"), (b"one\0two", b"two")):
        assert store.answer(StoreCall(0, "compare", ("a",), value)) == StoreAnswer(0, found)
    assert store.answer(StoreCall(0, "delete", ("a",))) == StoreAnswer(0, True)
    assert store.answer(StoreCall(0, "check", ("a",))) == StoreAnswer(0, False)
