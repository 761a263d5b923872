"""The token that is shown to the extender's admin port."""

from __future__ import annotations

from pathlib import Path

from scheduler_extender.cli.adminport import CREATE_TOKEN, TOKEN_VARIABLE
from scheduler_extender.cli.commandline import BadInputError


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
