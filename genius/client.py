"""The client of the HTTP service, see `genius.integrations.client`."""

from genius.integrations.client import (
    Client,
    JobStatus,
    NotAllowed,
    NotFound,
    ServedIndex,
    ServiceBusy,
    ServiceError,
    Unreachable,
)

__all__ = ["Client", "JobStatus", "NotAllowed", "NotFound", "ServedIndex", "ServiceBusy", "ServiceError", "Unreachable"]
