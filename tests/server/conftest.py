"""Fixtures of the tests of the page: a server, and a fresh page of it in a browser."""

import pytest

from tests.browser import fresh_page, page_server


@pytest.fixture(scope="module")
def address(toy, encoder, tmp_path_factory):
    """Address of a server with two linkers of one KB, and a second KB of words."""
    with page_server(tmp_path_factory.mktemp("page"), toy, encoder) as address:
        yield address


@pytest.fixture
def page(browser, address):
    """Page that was just opened; an error in its console fails the test."""
    with fresh_page(browser, address) as page:
        yield page
