"""What all tests share: hypothesis judges answers, not the speed of a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("wellread", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wellread")
