"""The token that is shown to the extender's admin port."""

from __future__ import annotations

from scheduler_extender.cli.adminport import CREATE_TOKEN, TOKEN_VARIABLE, AdminPort
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.options import Access, Credentials


def port_at(
    url: str, credentials: Credentials, access: Access, *, needed: bool = True
) -> AdminPort:
    """The admin port at a URL. Where no token is given it is that of the kubeconfig."""
    token = credentials.token or token_of(access, needed=needed)
    return AdminPort(url.rstrip("/"), credentials.admin_ca, token)


def token_of(access: Access, *, needed: bool = True) -> str | None:
    """The token that a kubeconfig has or gets, as from a plugin. Where it has none that is bad
    input if it is ``needed``, and else None."""
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

    if access.kubeconfig is None:
        return None
    try:
        api = ApiServer.from_kubeconfig(access.kubeconfig, access.context)
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
            f"--kubeconfig: {access.kubeconfig} has no token; give --token, or set "
            f"{TOKEN_VARIABLE}, to what this prints: {CREATE_TOKEN}"
        )
    return tokens[0]
