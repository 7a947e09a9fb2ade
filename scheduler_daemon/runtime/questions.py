"""Questions to the workflow server that execute nothing, each put into an observation.

Owns: which methods answer which question, the checks of first contact, and the cache of artifacts.  Must never know: who asked, or
what follows.  Every question has a bound in time, and fails alone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from rpc_client.errors import (
    APPLICATION_ERROR,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    Ambiguous,
    Answered,
    Ending,
    NotSent,
    Refused,
)
from rpc_client.workflow import WorkflowClient
from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core.commands import Preflight
from scheduler_daemon.core.model import ServerFacts
from scheduler_daemon.runtime.results import result_of

ARTIFACTS_MAX = 1024
"""How many artifacts, and how many deployments, are remembered."""

SOURCE_PAGES_MAX = 100
RUN_PAGES_MAX = 5
PAGE = 100

AGREED_S = 1.0
"""How long the server's yes to one create or update is good for others of that deployment; a no is asked for each time."""

CheckRoot = Callable[[str | None], str | None]
"""Says why the server's store root forbids ours; None when they get along."""


class Unanswered(Exception):
    """A question that came to nothing: the reason, and whether the server is to be taken for down."""

    def __init__(self, ending: NotSent | Ambiguous | Refused) -> None:
        reason = f"{ending.code} {ending.message}" if isinstance(ending, Refused) else ending.reason
        super().__init__(reason)
        self.reason = reason
        self.server_down = isinstance(ending, NotSent) and (ending.server_down or ending.http_status is not None)


class Questions:
    """`server_name` stands for the server in marks: its configured URL, or a name that survives a change of port."""

    def __init__(self, client: WorkflowClient, server_name: str, check_root: CheckRoot) -> None:
        self._client = client
        self._server_name = server_name
        self._check_root = check_root
        self._artifacts: dict[tuple[str, int], dict[str, Any] | None] = {}
        self._agreed: dict[str, tuple[float, Preflight]] = {}

    # --- the server ---

    async def probe(self, effect: cmd.Probe) -> list[cmd.Observation]:
        """Health; at first contact also sources, a scheduler of the server's own, and where its store lies."""
        try:
            facts = self._facts(_read(await self._client.health(), _Health))
            refusal = await self._first_contact(facts) if effect.first_contact else None
        except Unanswered as unanswered:
            return [cmd.ServerMissed(effect.seq, unanswered.reason)]
        return [cmd.ServerSeen(effect.seq, facts, refusal)]

    def _facts(self, health: _Health) -> ServerFacts:
        if health.status != "ok":
            raise Unanswered(Ambiguous(f"health says {health.status!r}"))
        return ServerFacts(
            url=self._server_name,
            store_root=health.store_root,
            instance_id=health.instance_id,
            features=tuple(sorted(health.features or ())),
        )

    async def _first_contact(self, facts: ServerFacts) -> str | None:
        nested = self._check_root(facts.store_root)
        if nested is not None:
            return nested
        probe = await self._client.schedules_list_probe()
        if not isinstance(probe, Answered | Refused) or (isinstance(probe, Refused) and probe.code == INTERNAL_ERROR):
            raise Unanswered(probe)  # it broke on its side, which says nothing about what it has
        if isinstance(probe, Answered) or probe.code != METHOD_NOT_FOUND:
            return "the server answers workflow.schedules.list: it has a scheduler of its own"
        return await self._connection_sources()

    async def _connection_sources(self) -> str | None:
        cursor: str | None = None
        for _ in range(SOURCE_PAGES_MAX):
            page = _read(await self._client.sources_list(cursor=cursor, limit=PAGE), _SourcesPage)
            for source in page.sources:
                if source.kind == "connection" and source.enabled:
                    return f"source {source.id!r} is of kind connection; MCP-backed servers are not supported yet"
            cursor = page.next_cursor
            if cursor is None:
                return None
        return "the server lists more sources than can be checked"

    # --- a deployment ---

    async def preflight(self, effect: cmd.AskPreflight, asked_at: datetime) -> list[cmd.Observation]:
        """Whether a deployment is runnable, and the schema of its input."""
        try:
            answer = await self.ask_preflight(effect.deployment_id)
        except Unanswered as unanswered:
            failed = cmd.PreflightAnswered(effect.seq, effect.deployment_id, asked_at, None, unanswered.reason)
            return [failed, cmd.ServerMissed(0, unanswered.reason)] if unanswered.server_down else [failed]
        return [cmd.PreflightAnswered(effect.seq, effect.deployment_id, asked_at, answer)]

    async def ask_preflight(self, deployment_id: str) -> Preflight:
        """Raises `Unanswered`."""
        ending = await self._client.deployments_validate(deployment_id)
        if unknown_to_server(ending):
            return Preflight(deployment_id=deployment_id, known=False)
        said = _read(ending, _Validated)
        if said.status != "runnable":
            told = said.diagnostics or ({"code": "unrunnable", "message": f"status {said.status!r}"},)
            return Preflight(deployment_id=deployment_id, diagnostics=told)
        return Preflight(
            deployment_id=deployment_id,
            artifact_id=said.artifact_id,
            artifact_version=said.artifact_version,
            input_schema=await self._input_schema(said.artifact_id, said.artifact_version),
        )

    async def agreed(self, deployment_id: str, mono: float) -> Preflight:
        """As `ask_preflight`, at `mono`: somebody else's answer counts if it was a yes and was asked for within `AGREED_S` before."""
        known = self._agreed.get(deployment_id)
        if known is not None and 0 <= mono - known[0] <= AGREED_S:
            return known[1]
        answer = await self.ask_preflight(deployment_id)
        if answer.known and not answer.diagnostics:
            _make_room(self._agreed)
            self._agreed[deployment_id] = (mono, answer)
        return answer

    async def _input_schema(self, artifact_id: str | None, version: int | None) -> dict[str, Any] | None:
        """An artifact version never changes, so its schema is asked for once."""
        if artifact_id is None or version is None:
            return None
        known = (artifact_id, version)
        if known not in self._artifacts:
            artifact = _read(await self._client.artifacts_inspect(artifact_id, version), _Artifact)
            _make_room(self._artifacts)
            self._artifacts[known] = artifact.input_schema
        return self._artifacts[known]

    # --- runs ---

    async def inspect(self, effect: cmd.InspectRun) -> list[cmd.Observation]:
        """Where one run stands; unknown to the server is an answer, anything but an answer is a failure."""
        ending = await self._client.runs_inspect(effect.server_run_id)
        told = cmd.RunInspected(
            seq=effect.seq, schedule_id=effect.schedule_id, run_id=effect.run_id, attempt=effect.attempt
        )
        if unknown_to_server(ending, effect.server_run_id):
            return [replace(told, known=False)]
        if isinstance(ending, Ambiguous) and ending.beyond:
            return [told]
        if not isinstance(ending, Answered):
            unanswered = Unanswered(ending)
            failed = replace(told, failed=unanswered.reason)
            return [failed, cmd.ServerMissed(0, unanswered.reason)] if unanswered.server_down else [failed]
        return [replace(told, result=result_of(ending.result, of=effect.server_run_id))]

    async def list_stopped(self, effect: cmd.ListStopped) -> list[cmd.Observation]:
        """Ids of the deployment's runs that stopped at or after `since`, newest first; what cannot be had is left out."""
        found: list[str] = []
        cursor: str | None = None
        for _ in range(RUN_PAGES_MAX):
            ending = await self._client.runs_list(cursor=cursor, limit=PAGE)
            try:
                page = _read(ending, _RunsPage)
            except Unanswered:
                break
            recent = [row for row in page.runs if row.updated_at >= effect.since]
            found += [row.run_id for row in recent if row.deployment_id == effect.deployment_id]
            cursor = page.next_cursor
            if cursor is None or len(recent) < len(page.runs):
                break
        return [cmd.StoppedListed(effect.seq, effect.schedule_id, effect.run_id, tuple(found))]


def _make_room(known: dict[Any, Any]) -> None:
    """The oldest go first."""
    while len(known) >= ARTIFACTS_MAX:
        known.pop(next(iter(known)))


# --- answers, as far as they are read ----------------------------------------------------------------------------------


class _Health(msgspec.Struct):
    status: str
    store_root: str | None = None
    instance_id: str | None = None
    features: tuple[str, ...] | None = None


class _Source(msgspec.Struct):
    id: str
    kind: str
    enabled: bool = True


class _SourcesPage(msgspec.Struct):
    sources: tuple[_Source, ...]
    next_cursor: str | None = None


class _Validated(msgspec.Struct):
    status: str
    diagnostics: tuple[Any, ...] = ()
    artifact_id: str | None = None
    artifact_version: int | None = None


class _Artifact(msgspec.Struct):
    input_schema: dict[str, Any] | None = None


class _StoppedRun(msgspec.Struct):
    run_id: str
    deployment_id: str
    updated_at: Annotated[datetime, msgspec.Meta(tz=True)]


class _RunsPage(msgspec.Struct):
    runs: tuple[_StoppedRun, ...]
    next_cursor: str | None = None


T = TypeVar("T")


def _read(ending: Ending, shape: type[T]) -> T:
    """The result in its shape.  Raises `Unanswered` for every other ending, and for a result of another shape."""
    if not isinstance(ending, Answered):
        raise Unanswered(ending)
    try:
        return msgspec.convert(ending.result, shape)
    except msgspec.ValidationError as error:
        raise Unanswered(Ambiguous(f"unreadable answer: {error}")) from None


def unknown_to_server(ending: Ending, run_id: str = "") -> bool:
    """The server's way of saying that there is no such thing: application error KeyError.

    One that does not name the run is some other key that was missing in the server's own work, and no word about the run.
    """
    if not isinstance(ending, Refused) or ending.code != APPLICATION_ERROR or not isinstance(ending.data, dict):
        return False
    said = cast("dict[str, Any]", ending.data)
    return said.get("code") == "KeyError" and run_id in str(said.get("message", ""))
