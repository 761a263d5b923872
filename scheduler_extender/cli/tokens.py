"""The extender's admin port as options name it, with the token that is shown to it."""

from __future__ import annotations

from pathlib import Path

from scheduler_extender.cli.adminport import CREATE_TOKEN, TOKEN_VARIABLE, AdminPort
from scheduler_extender.cli.commandline import BadInputError


def port_of(
    admin: str | None,
    ca: Path | None,
    token: str | None,
    kubeconfig: Path | None,
    context: str | None,
) -> AdminPort | None:
    """The port that is to be asked; None where none is named. Raises :class:`BadInputError`."""
    if admin is None:
        if ca is not None:
            raise BadInputError("--admin-ca: it is for --admin URL, which is missing")
        return None
    return AdminPort(admin.rstrip("/"), ca, token or token_of(kubeconfig, context))


def token_of(kubeconfig: Path | None, context: str | None, *, needed: bool = True) -> str | None:
    """The token that a kubeconfig has or gets, as from a plugin. Where it has none that is bad
    input if it is ``needed``, and else None."""
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

    if kubeconfig is None:
        return None
    try:
        api = ApiServer.from_kubeconfig(kubeconfig, context)
        try:
            shown = api.authorization().values()
        finally:
            api.close()
    except ApiFailure as error:
        raise BadInputError(str(error)) from error
    tokens = [value.partition(" ")[2] for value in shown if value.lower().startswith("bearer ")]
    if not tokens and not needed:
        return None
    if not tokens:
        raise BadInputError(
            f"--kubeconfig: {kubeconfig} has no token; give --token, or set {TOKEN_VARIABLE}, to "
            f"what this prints: {CREATE_TOKEN}"
        )
    return tokens[0]
