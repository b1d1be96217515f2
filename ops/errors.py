"""
OpsError
 - BadSettings    a flag, variable or file entry that cannot be; names it and the remedy
 - NoEngine       a command needs a running engine and there is none
 - Refused        an engine that said no; `kind` is its word for why
 - JobEnded       a job that was waited for did not complete
"""

OF_NO_USE = ("bad_input", "invalid_request", "model_not_found", "body_too_large")
"""How an engine calls a mistake in what it was asked for."""


class OpsError(Exception):
    """Root of what a command says in one line before it exits with `code`."""

    code = 1


class BadSettings(OpsError):
    code = 2


class NoEngine(OpsError):
    pass


class Refused(OpsError):
    def __init__(self, message: str, kind: str | None) -> None:
        super().__init__(message)
        self.kind = kind
        if kind in OF_NO_USE:
            self.code = 2


class JobEnded(OpsError):
    pass
