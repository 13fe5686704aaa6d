"""The settings as one typed tree. Each is declared once, with what it does, its range and its default.

    Config = run + serve (limits) + page + policy (sampling) + store + collect + notes + judge (llm, models, classifier)
           + train (loss, optim, lora, local, alarms) + gate (limits) + monitor + eval + env + gpus + cloud

`judge_settings` and `train_settings` hold the sections of those loops, this file all others and the tree.
A setting that may be absent is ``None``; from a file or the environment the empty text means absent.
A relative path starts at the working directory, whatever source names it, and is kept as an absolute one.
`config` reads the tree from its sources; nothing here reads anything.
"""

from __future__ import annotations

from typing import Literal

import platformdirs
from pydantic import Field, SecretStr, field_validator

from openclaw_rl.config.judge_settings import JudgeSection
from openclaw_rl.config.train_settings import GateSection, MonitorSection, TrainSection
from openclaw_rl.config.values import (
    Address,
    DatabaseUrl,
    Device,
    Dtype,
    Location,
    Options,
    Plugin,
    Section,
    Share,
    Shelf,
    Variable,
    Weights,
)

EvalTask = Literal["conversation", "coding", "tool-use"]
ToolFormat = Literal["auto", "hermes", "llama", "pythonic", "harmony", "none"]
Sync = Literal["normal", "full"]
Browser = Literal["playwright", "selenium"]
Screenshots = Literal["keep", "send", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]
Sink = Literal["tensorboard", "trackio", "wandb"]


class RunSection(Section):
    """The run: where it lives and how its loops behave."""

    dir: Location = Field(
        default_factory=lambda: platformdirs.user_data_path("openclaw-rl", appauthor=False) / "default",
        description="directory of this run: ledger, versions, records",
    )
    record: bool = Field(default=True, description="write a JSONL record of every training sample and step")
    sinks: tuple[Sink, ...] = Field(default=(), description="where each step's figures also go, if installed")
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="seed of the random choices in training, the gate and environments"
    )
    log_level: LogLevel = Field(default="info", description="least severe line shown; only debug shows conversations")
    poll: float = Field(default=0.2, gt=0, le=60, description="seconds an idle loop waits before it looks again")
    backoff: float = Field(
        default=60.0, gt=0, le=3600, description="most seconds a failing loop waits before its next try"
    )
    drain: float = Field(
        default=30.0,
        ge=0,
        le=600,
        description="seconds that open streams get to finish at shutdown; a step under way is done again later",
    )


EnvForm = Literal["auto", "tools", "text"]
SandboxDriver = Literal["bubblewrap", "podman", "docker"]


class ServeLimitsSection(Section):
    """What one request and one key may take."""

    body_mb: float = Field(
        default=8.0, gt=0, le=1024, description="largest request body, in MiB; talks with many pictures need more"
    )
    messages: int = Field(default=4096, ge=1, le=1_000_000, description="most messages in one request")
    queue: int = Field(default=1024, ge=1, le=1_000_000, description="requests that may wait for the policy; more: 429")
    streams_per_key: int = Field(default=256, ge=1, le=100_000, description="requests of one key at once; more: 429")
    hold_seconds: float = Field(default=120.0, ge=0, le=3600, description="longest hold while the policy restarts")
    body_seconds: float = Field(default=60.0, gt=0, le=3600, description="time a client has to send its body")
    write_seconds: float = Field(default=60.0, gt=0, le=3600, description="time a client may leave its reply unread")


class ServeSection(Section):
    """Loop 1, the API that clients talk to."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="address to listen on; beyond loopback needs a key"
    )
    port: int = Field(default=30000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    model_name: str | None = Field(default=None, description="model id that clients see; not set: the policy's name")
    intercept: bool = Field(default=True, description="keep conversations for training; off: answer and keep nothing")
    api_key: SecretStr | None = Field(
        default=None, description="bearer key of user 'default'; best given as OPENCLAW_API_KEY"
    )
    keys_file: Location | None = Field(
        default=None,
        description='keys of several users: lines "user:key", or .toml: user = "key"; an environment is user env:NAME',
    )
    admins: tuple[str, ...] = Field(
        default=("default",), description="users whose key may see everybody's talks and control versions"
    )
    no_train_users: tuple[str, ...] = Field(default=(), description="users whose turns are never trained on")
    redact: bool = Field(default=True, description="mask e-mail, phone, card and key patterns before anything is kept")
    store_optouts: bool = Field(
        default=True, description="keep turns whose client switched training off; off: no trace"
    )
    outright: bool = Field(
        default=True, description="take /good, /bad, thumbs and /fix TEXT in any client as feedback on the reply before"
    )
    cors_origins: tuple[str, ...] = Field(default=(), description="web origins that may call the API; empty: none")
    limits: ServeLimitsSection = Field(default_factory=ServeLimitsSection)


class PageSection(Section):
    """The page in the browser, beside the API."""

    enabled: bool = Field(default=True, description="whether 'up' starts the page")
    port: int | None = Field(
        default=None, ge=0, le=65535, description="port of the page, at serve.host; not set: the one after serve.port"
    )


class SamplingSection(Section):
    """How replies are sampled where a request does not say."""

    temperature: float = Field(default=1.0, ge=0, le=2, description="temperature")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus sampling")
    max_tokens: int | None = Field(default=None, ge=1, description="most tokens of a reply; not set: what fits")
    dry_multiplier: float = Field(
        default=0.0, ge=0, le=100, description="how strongly a reply is kept from repeating itself; 0: not at all"
    )


class PolicySection(Section):
    """The policy: the weights that answer and what runs them."""

    backend: Plugin = Field(
        default="local",
        min_length=1,
        description="what serves the model: local, vllm, sglang, tinker, fake or a plugin",
    )
    model: Weights = Field(
        default="embedded",
        min_length=1,
        description="the model that answers: embedded, a Hugging Face id, a folder, a GGUF file",
    )
    device: Device = Field(default="auto", description="auto, cpu, mps, cuda or cuda:N")
    dtype: Dtype = Field(default="auto", description="number format; auto: float32 for small models, else the fastest")
    context: int | None = Field(
        default=None, ge=256, description="most tokens of prompt and reply; not set: the model's own"
    )
    chat_template: Location | None = Field(default=None, description="Jinja file in place of the model's own template")
    tool_format: ToolFormat = Field(
        default="auto", description="how the model writes tool calls; auto: read from its chat template"
    )
    max_batch: int = Field(default=64, ge=1, le=4096, description="most replies generated together")
    cache_tokens: int | None = Field(
        default=None, ge=256, description="tokens the KV cache holds; not set: by free memory"
    )
    url: Address | None = Field(
        default=None, description="address of a vLLM or SGLang that runs already; not set: one is started here"
    )
    launch: bool | None = Field(
        default=None, description="start the engine and keep it running; not set: where policy.url is not set"
    )
    engine_key: SecretStr | None = Field(default=None, description="API key of an engine that runs already, if it has")
    engine_python: Location | None = Field(
        default=None, description="Python of the environment that the engine is installed in; not set: this one"
    )
    engine_flags: tuple[str, ...] = Field(default=(), description="further flags for the engine that is started")
    memory_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of a GPU's memory for the engine; not set: 0.9, or 0.4 beside a trainer",
    )
    generate: Plugin | None = Field(default=None, description="custom generate function, a plugin")
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    options: Options = Field(default_factory=dict, repr=False, description="free table handed to the backend")


class StoreSection(Section):
    """The ledger."""

    sync: Sync = Field(default="full", description="normal outlives a killed process, full also a power cut")
    url: DatabaseUrl | None = Field(
        default=None,
        description="PostgreSQL database of the ledger, postgresql://...; not set: a SQLite file in run.dir",
    )
    versions: Shelf | None = Field(
        default=None,
        min_length=1,
        description="folder, s3:// or gs:// through which versions reach gateways on other machines; not set: run.dir",
    )


class CollectSection(Section):
    """Loop 2, turns to outcomes."""

    session_idle: float = Field(default=1800.0, gt=0, le=604_800, description="seconds of silence that end a session")
    starve_turns: int = Field(default=20, ge=1, le=100_000, description="alarm after so many turns with none trainable")


class NotesSection(Section):
    """Standing notes: what a user asked for, in that user's prompts until the weights do it."""

    enabled: bool = Field(
        default=True, description="make notes of what users ask for and put them into their next prompts"
    )
    max_tokens: int = Field(default=160, ge=1, le=4096, description="most tokens of notes in one prompt")
    max_facts: int = Field(default=5, ge=0, le=100, description="most facts among them, the newest ones")


class EvalSection(Section):
    """Evaluation of a version, a folder or an address."""

    tasks: tuple[EvalTask, ...] = Field(default=("conversation", "coding", "tool-use"), description="suites to run")


class SandboxSection(Section):
    """Where an environment runs what a model wrote."""

    driver: SandboxDriver = Field(
        default="bubblewrap", description="what keeps it apart: bubblewrap, or podman or docker where you prefer them"
    )
    root: str | None = Field(
        default=None,
        min_length=1,
        description="a system of its own: a folder, for podman and docker an image; not set: this machine's programs",
    )
    command_seconds: float = Field(default=30.0, gt=0, le=86_400, description="longest that one command may take")
    cpu_seconds: int = Field(default=60, ge=1, le=86_400, description="processor time of each process")
    memory_mb: int = Field(default=512, ge=16, le=1_048_576, description="memory, in MiB")
    disk_mb: int = Field(default=128, ge=1, le=1_048_576, description="files, kept in memory, in MiB")
    processes: int = Field(default=128, ge=4, le=65_536, description="processes and threads at once")
    output_kb: int = Field(default=1024, ge=1, le=1_048_576, description="output of one command, in KiB; more stops it")


class EnvSection(Section):
    """Environments: clients whose reply is the next state."""

    type: Plugin | None = Field(default=None, description="the environment of the episodes, a plugin")
    max_steps: int = Field(default=20, ge=1, le=100_000, description="most replies in one episode")
    parallel: int = Field(default=4, ge=1, le=4096, description="episodes at once")
    lease_seconds: float = Field(
        default=60.0, gt=0, le=86_400, description="how long an environment is kept for a player that says nothing"
    )
    workers: tuple[Address, ...] = Field(
        default=(), description="addresses of 'openclaw-rl envs serve' on other machines; empty: environments run here"
    )
    workers_key_env: Variable | None = Field(
        default=None, description="environment variable that holds the key of the workers"
    )
    curriculum: bool = Field(
        default=True, description="rest tasks that are always or never solved; off: every task has its turn"
    )
    max_pending: int = Field(
        default=256, ge=1, description="untrained turns at which no new group of episodes begins; users never wait"
    )
    form: EnvForm = Field(
        default="auto", description="how a reply acts: by tools, or as text in a fenced block; auto: as the model can"
    )
    examples: int | None = Field(
        default=None, ge=0, le=16, description="solved tasks in the first prompt; not set: 2 in the text form, else 0"
    )
    step_votes: bool = Field(
        default=False,
        description="terminal and toolcall vote on each step: 1 where its action could be carried out, -1 where not",
    )
    rungs: tuple[str, ...] = Field(
        default=(), description="rungs of the environment's ladder to take tasks from; empty: all"
    )
    per_rung: int = Field(
        default=40, ge=1, le=100_000, description="tasks of each rung that train; half as many more are held out"
    )
    output_chars: int = Field(
        default=4000, ge=40, le=1_000_000, description="most characters of an output in the next prompt, head and tail"
    )
    screenshot_backend: Browser = Field(default="playwright", description="browser driver of gui")
    screenshots: Screenshots = Field(
        default="keep",
        description="screenshots of gui: kept in the run directory, also sent to a model that sees, or off",
    )
    pages: Location | None = Field(
        default=None, description="JSONL file with tasks on pages of your own, for gui; not set: MiniWoB++"
    )
    folder: Location | None = Field(
        default=None, description="folder of the tasks of harbor, or that the package of a task set was installed in"
    )
    tools_config: Location | None = Field(default=None, description="JSON file with the functions of toolcall")
    sandbox: SandboxSection = Field(default_factory=SandboxSection)
    swe_bench_path: Location | None = Field(default=None, description="folder with the instances of swe")
    options: Options = Field(default_factory=dict, repr=False, description="free table handed to the environment")


class GpuSection(Section):
    """Who gets which GPU: a count, or a list of device numbers. Nothing set: a layout that fits this machine."""

    total: int | None = Field(default=None, ge=0, le=65536, description="GPUs in all; not set: those of this machine")
    train: Share | None = Field(default=None, description="GPUs of the trainer; not set: half of them")
    rollout: Share | None = Field(default=None, description="GPUs of the serving engine; not set: a quarter of them")
    judge: Share | None = Field(default=None, description="GPUs of the judge; not set: one, or the engine's")
    teacher: Share | None = Field(default=None, description="GPUs of the teacher; it runs in the trainer, on its GPUs")
    turns: bool = Field(
        default=False,
        description="vLLM or SGLang on the trainer's GPU sleeps while a step is trained, requests wait; not set: they"
        " share its memory",
    )

    @field_validator("train", "rollout", "judge", "teacher")
    @classmethod
    def _devices(cls, share: Share | None) -> Share | None:
        numbers = share if isinstance(share, tuple) else (share or 0,)
        if min(numbers, default=-1) < 0 or len(set(numbers)) < len(numbers):
            raise ValueError("must be a count of at least 0, or a list of different device numbers from 0")
        return share


class PriceSection(Section):
    """What the service takes for a million tokens, in the currency of `daily_budget`; as its price list says."""

    prefill: float = Field(default=0.0, ge=0, le=1e6, description="reading a prompt, and scoring a reply")
    sample: float = Field(default=0.0, ge=0, le=1e6, description="writing a reply")
    train: float = Field(default=0.0, ge=0, le=1e6, description="a pass of training, forward alone or forward and back")


class CloudSection(Section):
    """Machines elsewhere: Tinker, and servers that speak its protocol."""

    tinker_api_key: SecretStr | None = Field(default=None, description="key of Tinker; best given as TINKER_API_KEY")
    tinker_endpoint: Address | None = Field(default=None, description="address of Tinker; not set: its own")
    tokenizer: Weights | None = Field(
        default=None, description="folder or Hugging Face id of the tokenizer; not set: policy.model's"
    )
    download: bool = Field(
        default=False, description="also download each version's adapter, so that an engine of your own can serve it"
    )
    daily_budget: float | None = Field(
        default=None, gt=0, description="most money a day (UTC), by the prices; not set: no limit"
    )
    price_per_million: PriceSection = Field(default_factory=PriceSection)


class Config(Section):
    """All settings."""

    run: RunSection = Field(default_factory=RunSection)
    serve: ServeSection = Field(default_factory=ServeSection)
    page: PageSection = Field(default_factory=PageSection)
    policy: PolicySection = Field(default_factory=PolicySection)
    store: StoreSection = Field(default_factory=StoreSection)
    collect: CollectSection = Field(default_factory=CollectSection)
    judge: JudgeSection = Field(default_factory=JudgeSection)
    notes: NotesSection = Field(default_factory=NotesSection)
    train: TrainSection = Field(default_factory=TrainSection)
    gate: GateSection = Field(default_factory=GateSection)
    monitor: MonitorSection = Field(default_factory=MonitorSection)
    eval: EvalSection = Field(default_factory=EvalSection)
    env: EnvSection = Field(default_factory=EnvSection)
    gpus: GpuSection = Field(default_factory=GpuSection)
    cloud: CloudSection = Field(default_factory=CloudSection)
