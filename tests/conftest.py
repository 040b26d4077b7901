"""What all tests share: hypothesis judges answers, not the speed of a busy machine; tiny models come from `tiny`."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("wellread", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wellread")


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The folder of a tiny random encoder."""
    from tests.tiny import write_encoder

    return write_encoder(tmp_path_factory.mktemp("tiny") / "encoder")


@pytest.fixture(scope="session")
def plain_encoder(tmp_path_factory):
    """The folder of one whose pieces know nothing of their neighbours and places."""
    from tests.tiny import write_encoder

    return write_encoder(tmp_path_factory.mktemp("tiny") / "plain", width=32, layers=1, reach=False)
