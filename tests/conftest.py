"""What every test may use."""

from tests.cluster.fixture import local_cluster, make_cluster, ray_driver, ray_environment

__all__ = ["local_cluster", "make_cluster", "ray_driver", "ray_environment"]
