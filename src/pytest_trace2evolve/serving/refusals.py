"""A request that is refused, in the API's own shape of errors."""

from typing import Any


class ApiError(Exception):
    """A request that is refused.

    Attributes:
        param: The field that is wrong; None where it is none.
        code: The API's code, where there is one.
        status: The HTTP status.
        retry_after: Seconds after which another try may help; None where none helps.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        status: int = 400,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The error as the API tells it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}
