"""The client of the service; see `genius.integrations.client`."""

from genius.integrations.client import *  # noqa: F403
