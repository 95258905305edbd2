"""Files whose tests workers share."""

from tests import CHECKOUT
from tests.harness.spread_tests import SPREAD


def test_files_whose_tests_workers_share_have_no_fixture_for_all_of_them() -> None:
    paths = [path for path in (CHECKOUT / "tests").rglob("*.py") if path.name in SPREAD]
    assert {path.name for path in paths} == SPREAD
    assert [path.name for path in paths if 'scope="' in path.read_text()] == []
