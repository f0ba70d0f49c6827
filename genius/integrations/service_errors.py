"""Errors that the client of the service raises."""

from genius.errors import GeniusError


class ServiceError(GeniusError):
    """The service refused a request. The message is the service's own; `status` is the HTTP status."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None, field: str | None = None):
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field


class NotFound(ServiceError):
    """The item, job or index does not exist."""


class NotAllowed(ServiceError):
    """The API key is missing, unknown, or does not permit this request."""


class ServiceBusy(ServiceError):
    """The service was overloaded in several attempts."""


class Unreachable(ServiceError):
    """The service did not respond, or the response is not from `genius serve`."""


_TYPES = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 429: ServiceBusy, 503: ServiceBusy}


def error_type(status: int) -> type[ServiceError]:
    """The error for an HTTP status."""
    return _TYPES.get(status, ServiceError)
