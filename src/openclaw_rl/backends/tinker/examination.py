"""What can be said of the service before anybody relies on it: for `openclaw-rl doctor`."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.backends.tinker.sdk import installed_version
from openclaw_rl.backends.tinker.session import TinkerSession
from openclaw_rl.backends.tinker.settings import TinkerPolicySettings
from openclaw_rl.errors import OpenClawError
from openclaw_rl.ports import EngineFinding


async def examine(session: TinkerSession, settings: TinkerPolicySettings) -> Sequence[EngineFinding]:
    """The SDK, the address, the key and the model; a session is opened and closed, nothing is sampled."""
    try:
        _ = session.sdk
        known = await session.models()
    except OpenClawError as error:
        return [EngineFinding(fine=False, what=error.what, remedy=error.remedy or "")]
    finally:
        await session.close()
    found = [EngineFinding(fine=True, what=f"tinker {installed_version()} reaches {session.url}: {len(known)} models")]
    if settings.model not in known:
        what = f"it has no model {settings.model!r}"
        found.append(EngineFinding(fine=False, what=what, remedy=f"it has {', '.join(sorted(known)[:8])}"))
    if settings.cloud_budget is not None and not any(settings.cloud_prices.values()):
        what = "cloud.daily_budget is set, but cloud.price_per_million names no price"
        found.append(EngineFinding(fine=False, what=what, remedy="give the prices of the model, or no budget"))
    return found
