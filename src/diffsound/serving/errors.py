"""Errors and their responses: one line of JSON, with the request's id in the log."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from diffsound.errors import DiffsoundError
from diffsound.serving.schemas import ErrorAnswer

# For the OpenAPI document: what every endpoint that takes input can answer besides success.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        400: "The request or its body cannot be parsed.",
        401: "An API key is needed.",
        403: "Other web sites may not use this server.",
        404: "There is no such thing, or it has expired.",
        406: "None of the accepted media types is available.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "The content type is missing or not supported.",
        422: "A value cannot be used; the detail says which and why.",
        429: "Too many requests; try again after Retry-After seconds.",
        503: "Not ready, shutting down, or out of time.",
    }.items()
}


class ServiceError(Exception):
    """Not the caller's mistake, but an answer with a status of its own."""

    status = 503
    retry_after: int | None = None  # seconds


class TooManyError(ServiceError):
    """The queue, or this caller's allowance, is used up."""

    status = 429

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(f"{message}; try again in {retry_after} s")
        self.retry_after = retry_after


class NotReadyError(ServiceError):
    """The model is still being loaded, or the server is shutting down."""

    retry_after = 5


class TimedOutError(ServiceError):
    """The request ran out of time."""


class CancelledError(ServiceError):
    """The caller hung up or cancelled the request."""

    status = 499  # nginx's number for a client that closed the request


class NotFoundError(ServiceError):
    """No such sound, job or bundle, or it has expired."""

    status = 404


def public_message(error: BaseException) -> str:
    """What a caller is told: the message of our own errors, and nothing about internal ones."""
    if isinstance(error, DiffsoundError | ServiceError):
        return " ".join(str(error).split())
    return "something went wrong inside the server; its log has the details"


def error_response(
    status: int, detail: str, request_id: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """The one shape every error has."""
    printable = detail.encode("utf-8", "replace").decode("utf-8")
    body = ErrorAnswer(detail=printable, request_id=request_id)
    return JSONResponse(body.model_dump(), status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Turn every expected exception into its answer."""

    def answer(
        request: Request, status: int, detail: str, headers: dict[str, str] | None = None
    ) -> JSONResponse:
        return error_response(status, detail, str(request.scope.get("request_id", "")), headers)

    @app.exception_handler(DiffsoundError)
    async def user_error(request: Request, error: DiffsoundError) -> JSONResponse:
        return answer(request, 422, public_message(error))

    @app.exception_handler(ServiceError)
    async def service_error(request: Request, error: ServiceError) -> JSONResponse:
        after = error.retry_after
        headers = None if after is None else {"Retry-After": str(after)}
        return answer(request, error.status, public_message(error), headers)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, OSError):  # a large upload is a temporary file
            reason = error.__cause__.strerror or "its disk failed"
            return answer(request, 503, f"the server cannot take the upload: {reason}")
        detail = _parse_problem(error) or str(error.detail)
        return answer(request, error.status_code, detail, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(request, *_first_problem(request, error))


def _parse_problem(error: HTTPException) -> str | None:
    """Why FastAPI could not read a body; its own line does not say."""
    for cause, reason in (
        (RecursionError, "it is nested too deeply"),
        (UnicodeDecodeError, "it is not UTF-8"),
        (ValueError, "a number in it has too many digits"),
    ):
        if error.status_code == 400 and isinstance(error.__cause__, cause):
            return f"the body cannot be read: {reason}"
    return None


def _first_problem(request: Request, error: RequestValidationError) -> tuple[int, str]:
    """Status and line for the first thing wrong, without the value: it may be private."""
    problem = error.errors()[0]
    kind, where, message = problem["type"], problem["loc"], str(problem["msg"])
    if kind == "json_invalid":
        reason = problem["ctx"]["error"]
        return 400, f"the body is not valid JSON: {reason}, at character {where[-1]}"
    if kind == "value_error":  # one of our own, about several fields
        return 422, message.removeprefix("Value error, ")
    if where[0] == "body":
        wanted, given = _wanted_type(request), request.headers.get("content-type", "")
        if not _fits(given, wanted):
            said = f"is '{given[:100]}'" if given else "is missing"
            return 415, f"the Content-Type {said}; send the body as '{wanted}'"
        if len(where) == 1:
            return 422, "the body is empty" if kind == "missing" else "the body is not an object"
    place = ".".join(str(part) for part in where[1:]) or str(where[0])
    return 422, f"'{place}': {message[:1].lower()}{message[1:]}"


def _wanted_type(request: Request) -> str:
    """The content type of the bodies that the request's endpoint takes."""
    field = getattr(request.scope.get("route"), "body_field", None)
    return str(getattr(getattr(field, "field_info", None), "media_type", "application/json"))


def _fits(given: str, wanted: str) -> bool:
    media = given.partition(";")[0].strip().lower()
    if wanted == "application/json":
        return media == wanted or (media.startswith("application/") and media.endswith("+json"))
    return media in (wanted, "application/x-www-form-urlencoded")
