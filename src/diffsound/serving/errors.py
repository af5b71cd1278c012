"""Errors as answers: one line of JSON, with the request's id to find it in the log."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from diffsound.errors import DiffsoundError
from diffsound.serving.schemas import ErrorAnswer
from diffsound.serving.tasks import NotReadyError, QueueFullError, ServiceError, public_message

# For the OpenAPI document: what every endpoint that takes input can answer besides success.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        400: "The body is not what its content type says.",
        401: "An API key is needed.",
        403: "Another web site may not use this server.",
        404: "There is no such thing, or not any more.",
        406: "None of the accepted media types can be given.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "The content type cannot be read.",
        422: "A value cannot be used; the detail says which and why.",
        429: "Too many requests wait; try again after Retry-After seconds.",
        503: "Not ready, shutting down, or out of time.",
    }.items()
}


def error_response(
    status: int, detail: str, request_id: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """The one shape every error has."""
    body = ErrorAnswer(detail=detail, request_id=request_id)
    return JSONResponse(body.model_dump(), status, headers)


def request_id(request: Request) -> str:
    """The id the log knows this request by."""
    return str(request.scope.get("request_id", ""))


def add_error_handlers(app: FastAPI) -> None:
    """Turn every expected exception into its answer."""

    @app.exception_handler(DiffsoundError)
    def user_error(request: Request, error: DiffsoundError) -> JSONResponse:
        return error_response(422, public_message(error), request_id(request))

    @app.exception_handler(ServiceError)
    def service_error(request: Request, error: ServiceError) -> JSONResponse:
        headers = None
        if isinstance(error, QueueFullError):
            headers = {"Retry-After": str(error.retry_after)}
        elif isinstance(error, NotReadyError):
            headers = {"Retry-After": "5"}
        return error_response(error.status, public_message(error), request_id(request), headers)

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers or {})
        return error_response(error.status_code, str(error.detail), request_id(request), headers)

    @app.exception_handler(RequestValidationError)
    def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(422, _first_problem(error), request_id(request))


def _first_problem(error: RequestValidationError) -> str:
    """The first thing wrong, without the value: it may be anything, and private."""
    problems = error.errors()
    if not problems:
        return "the request cannot be read"
    problem = problems[0]
    place = ".".join(str(part) for part in problem["loc"][1:]) or str(problem["loc"][0])
    message = str(problem["msg"])
    text = f"'{place}': {message[:1].lower()}{message[1:]}"
    return text.encode("utf-8", "replace").decode("utf-8")
