"""Settings of the limits, and the file of tenants. Light; front end."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tenonry.config import Settings, read, setting
from tenonry.config.sources import read_yaml
from tenonry.errors import ConfigError
from tenonry.interfaces.plugin import PluginSettings


class TenantSettings(PluginSettings):
    """Limits of every tenant, and what distinguishes tenants."""

    tenant_requests_per_minute: int = setting(0, ge=0)
    """Requests per minute of each tenant. 0: no limit."""
    tenant_tokens_per_minute: int = setting(0, ge=0)
    """Prompt and output tokens per minute and tenant. 0: no limit."""
    tenant_concurrent_requests: int = setting(0, ge=0)
    """Concurrent requests of each tenant. 0: no limit."""
    tenant_header: str | None = setting(None, pattern=r"^[A-Za-z0-9-]{1,64}$")
    """Request header that names the tenant, set by a proxy. Defaults to the API key."""
    tenants_file: str | None = setting(None, min_length=1)
    """YAML or JSON file with limits per tenant."""


class Tenant(Settings):
    """Limits of one tenant. None: the common limit; 0: no limit."""

    api_keys: tuple[str, ...] = Field((), repr=False)
    requests_per_minute: int | None = Field(None, ge=0)
    tokens_per_minute: int | None = Field(None, ge=0)
    concurrent_requests: int | None = Field(None, ge=0)

    def with_defaults(self, settings: TenantSettings) -> Tenant:
        """These limits, with the common ones where none is given."""
        given = self.model_dump(exclude_none=True)
        return Tenant.model_validate({**common(settings).model_dump(), **given})


def common(settings: TenantSettings) -> Tenant:
    """Limits of a tenant that the file does not name."""
    return Tenant(
        requests_per_minute=settings.tenant_requests_per_minute,
        tokens_per_minute=settings.tenant_tokens_per_minute,
        concurrent_requests=settings.tenant_concurrent_requests,
    )


def read_tenants(settings: TenantSettings) -> dict[str, Tenant]:
    """Tenants of the file, by name. Raises ConfigError that names the file, and each bad value but no key."""
    if settings.tenants_file is None:
        return {}
    source = f"tenants_file={settings.tenants_file}"
    try:
        data = read_yaml(Path(settings.tenants_file).read_bytes(), source)
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}") from None
    except ConfigError as error:  # its text quotes the line, which may hold a key
        mark = getattr(error.__context__, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(f"{source} is not valid YAML{line}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{source} must hold a mapping of tenants, not a {type(data).__name__}")
    found: dict[str, Tenant] = {}
    for name, given in data.items():
        values = {} if given is None else given
        if not isinstance(values, dict):
            raise ConfigError(f"{source}: '{name}' must hold a mapping of limits")
        values = {str(key).replace("-", "_"): value for key, value in values.items()}
        try:
            tenant = read(Tenant, values, Tenant.model_fields)
        except ConfigError as error:
            raise ConfigError(f"{source}: tenant '{name}': {error}") from None
        for other, its in found.items():
            if {*its.api_keys} & {*tenant.api_keys}:
                raise ConfigError(f"{source}: tenants '{other}' and '{name}' have the same API key")
        found[str(name)] = tenant.with_defaults(settings)
    return found
