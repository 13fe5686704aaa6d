"""The settings as one typed tree; each setting is declared once, with its meaning, range and default.

    Config = run + serve (limits) + page + policy (sampling) + store + collect + notes + judge (llm, models, classifier)
           + train (loss, optim, lora, local, alarms) + gate (limits) + monitor + eval + env + gpus + cloud

`judge_settings` and `train_settings` contain the sections for those loops, this file all others and the tree. An
optional setting is ``None`` when absent; the empty text in a file or the environment means absent. A relative path
starts at the working directory, whichever source names it, and is stored as an absolute path. `sources` reads the
values; this module performs no input.
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
    StoreAddress,
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
    """The run: its directory, its records and the timing for its loops."""

    dir: Location = Field(
        default_factory=lambda: platformdirs.user_data_path("openclaw-rl", appauthor=False) / "default",
        description="directory of this run: ledger, versions, records",
    )
    record: bool = Field(default=True, description="write a JSONL record of every training sample and step")
    sinks: tuple[Sink, ...] = Field(
        default=(), description="trackers that also receive each step's metrics, if installed"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="random seed for training, the gate and environments")
    log_level: LogLevel = Field(default="info", description="lowest level logged; conversations appear only at debug")
    poll: float = Field(default=0.2, gt=0, le=60, description="seconds between an idle loop's checks for work")
    backoff: float = Field(
        default=60.0, gt=0, le=3600, description="longest wait before a failing loop retries, in seconds"
    )
    drain: float = Field(
        default=30.0,
        ge=0,
        le=600,
        description="seconds for open streams to finish at shutdown; an interrupted training step is repeated later",
    )


EnvForm = Literal["auto", "tools", "text"]
SandboxDriver = Literal["bubblewrap", "podman", "docker"]


class ServeLimitsSection(Section):
    """Limits for one request and one key."""

    body_mb: float = Field(
        default=8.0,
        gt=0,
        le=1024,
        description="largest request body, in MiB; conversations with many pictures need more",
    )
    messages: int = Field(default=4096, ge=1, le=1_000_000, description="most messages in one request")
    queue: int = Field(
        default=1024, ge=1, le=1_000_000, description="most requests waiting for the policy; further ones receive 429"
    )
    streams_per_key: int = Field(
        default=256, ge=1, le=100_000, description="most concurrent requests with one key; further ones receive 429"
    )
    hold_seconds: float = Field(default=120.0, ge=0, le=3600, description="longest wait for a restarting policy")
    body_seconds: float = Field(default=60.0, gt=0, le=3600, description="time for a client to send its body")
    write_seconds: float = Field(default=60.0, gt=0, le=3600, description="time a client may leave its reply unread")


class ServeSection(Section):
    """Loop 1: the API for clients."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="address to listen on; beyond loopback needs a key"
    )
    port: int = Field(default=30000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    model_name: str | None = Field(default=None, description="model id in the API; not set: the policy's name")
    intercept: bool = Field(default=True, description="store conversations for training; off: answer without storing")
    api_key: SecretStr | None = Field(
        default=None, description="bearer key of user 'default'; best given as OPENCLAW_API_KEY"
    )
    keys_file: Location | None = Field(
        default=None,
        description='keys for several users: lines "user:key", or .toml: user = "key"; an environment is user env:NAME',
    )
    admins: tuple[str, ...] = Field(
        default=("default",), description="users whose key may read all conversations and control versions"
    )
    no_train_users: tuple[str, ...] = Field(default=(), description="users whose turns are never trained on")
    redact: bool = Field(default=True, description="mask e-mail, phone, card and key patterns before storage")
    store_optouts: bool = Field(
        default=True, description="store turns whose client switched training off; off: store no trace"
    )
    inline_feedback: bool = Field(
        default=True,
        description="treat /good, /bad, thumbs and /fix TEXT in any client as feedback on the previous reply",
    )
    cors_origins: tuple[str, ...] = Field(default=(), description="web origins that may call the API; empty: none")
    limits: ServeLimitsSection = Field(default_factory=ServeLimitsSection)


class PageSection(Section):
    """The browser page beside the API."""

    enabled: bool = Field(default=True, description="start the page with 'up'")
    port: int | None = Field(
        default=None, ge=0, le=65535, description="port of the page, at serve.host; not set: the one after serve.port"
    )


class SamplingSection(Section):
    """Sampling defaults for requests that set none."""

    temperature: float = Field(default=1.0, ge=0, le=2, description="temperature")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus sampling")
    max_tokens: int | None = Field(default=None, ge=1, description="most tokens in a reply; not set: as many as fit")
    dry_multiplier: float = Field(
        default=0.0, ge=0, le=100, description="strength of the penalty against repetition within a reply; 0: none"
    )


class PolicySection(Section):
    """The policy: its weights and the engine that runs them."""

    backend: Plugin = Field(
        default="local",
        min_length=1,
        description="serving engine: local, vllm, sglang, tinker, fake or a plugin",
    )
    model: Weights = Field(
        default="embedded",
        min_length=1,
        description="the model to serve: embedded, a Hugging Face id, a folder, a GGUF file",
    )
    device: Device = Field(default="auto", description="auto, cpu, mps, cuda or cuda:N")
    dtype: Dtype = Field(default="auto", description="number format; auto: float32 for small models, else the fastest")
    context: int | None = Field(
        default=None, ge=256, description="most tokens in prompt and reply together; not set: the model's limit"
    )
    chat_template: Location | None = Field(default=None, description="Jinja file in place of the model's own template")
    tool_format: ToolFormat = Field(
        default="auto", description="format for the model's tool calls; auto: read from its chat template"
    )
    max_batch: int = Field(default=64, ge=1, le=4096, description="most replies generated together")
    cache_tokens: int | None = Field(
        default=None, ge=256, description="KV cache size in tokens; not set: by free memory"
    )
    url: Address | None = Field(
        default=None, description="address of a running vLLM or SGLang; not set: one is started here"
    )
    launch: bool | None = Field(
        default=None, description="start the engine and keep it running; not set: only without policy.url"
    )
    engine_key: SecretStr | None = Field(default=None, description="API key for a running engine, if it requires one")
    engine_python: Location | None = Field(
        default=None, description="Python of the environment with the engine; not set: this one"
    )
    engine_flags: tuple[str, ...] = Field(default=(), description="extra flags for the started engine")
    memory_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of a GPU's memory for the engine; not set: 0.9, or 0.4 beside a trainer",
    )
    generate: Plugin | None = Field(default=None, description="custom generate function, a plugin")
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    options: Options = Field(default_factory=dict, repr=False, description="free-form table for the backend")


class StoreSection(Section):
    """The ledger."""

    sync: Sync = Field(default="full", description="normal survives a killed process, full also a power cut")
    url: DatabaseUrl | None = Field(
        default=None,
        description="PostgreSQL database for the ledger, postgresql://...; not set: a SQLite file in run.dir",
    )
    versions: StoreAddress | None = Field(
        default=None,
        min_length=1,
        description="artifact store for gateways on other machines: a folder, s3:// or gs://; not set: run.dir",
    )


class CollectSection(Section):
    """Loop 2, from turns to outcomes."""

    session_idle: float = Field(
        default=1800.0, gt=0, le=604_800, description="seconds without a request that end a session"
    )
    starve_turns: int = Field(
        default=20, ge=1, le=100_000, description="alarm after this many turns without a trainable one"
    )


class NotesSection(Section):
    """Standing notes: a user's requests, added to that user's prompts until the weights follow them."""

    enabled: bool = Field(
        default=True, description="turn users' requests into notes and add them to their next prompts"
    )
    max_tokens: int = Field(default=160, ge=1, le=4096, description="most tokens of notes in one prompt")
    max_facts: int = Field(default=5, ge=0, le=100, description="most facts among these notes; the newest are used")


class EvalSection(Section):
    """Evaluation of a version, a folder or an address."""

    tasks: tuple[EvalTask, ...] = Field(default=("conversation", "coding", "tool-use"), description="suites to run")


class SandboxSection(Section):
    """The sandbox for commands and code that a model wrote."""

    driver: SandboxDriver = Field(default="bubblewrap", description="isolation: bubblewrap, or podman or docker")
    root: str | None = Field(
        default=None,
        min_length=1,
        description="separate root file system: a folder, for podman and docker an image; not set: this machine's"
        " programs",
    )
    command_seconds: float = Field(default=30.0, gt=0, le=86_400, description="longest run time for one command")
    cpu_seconds: int = Field(default=60, ge=1, le=86_400, description="processor time for each process")
    memory_mb: int = Field(default=512, ge=16, le=1_048_576, description="memory, in MiB")
    disk_mb: int = Field(
        default=128, ge=1, le=1_048_576, description="size limit for files, which are kept in memory, in MiB"
    )
    processes: int = Field(default=128, ge=4, le=65_536, description="most processes and threads at once")
    output_kb: int = Field(
        default=1024, ge=1, le=1_048_576, description="most output from one command, in KiB; a longer output stops it"
    )


class EnvSection(Section):
    """Environments: clients whose reply is the next state."""

    type: Plugin | None = Field(default=None, description="environment for the episodes, a plugin")
    max_steps: int = Field(default=20, ge=1, le=100_000, description="most replies in one episode")
    parallel: int = Field(default=4, ge=1, le=4096, description="episodes at once")
    lease_seconds: float = Field(
        default=60.0, gt=0, le=86_400, description="seconds before an environment with a silent player is released"
    )
    workers: tuple[Address, ...] = Field(
        default=(), description="addresses of 'openclaw-rl envs serve' on other machines; empty: environments run here"
    )
    workers_key_env: Variable | None = Field(
        default=None, description="environment variable that holds the workers' key"
    )
    curriculum: bool = Field(
        default=True, description="pause tasks that are always or never solved; off: play every task in turn"
    )
    max_pending: int = Field(
        default=256, ge=1, description="untrained turns at which no new episode group starts; users' requests continue"
    )
    form: EnvForm = Field(
        default="auto", description="action format: tools, or text in a fenced block; auto: by the model's capabilities"
    )
    examples: int | None = Field(
        default=None, ge=0, le=16, description="solved tasks in the first prompt; not set: 2 in the text form, else 0"
    )
    step_votes: bool = Field(
        default=False,
        description="add a vote per step in terminal and toolcall: 1 if its action could be carried out, else -1",
    )
    levels: tuple[str, ...] = Field(default=(), description="curriculum levels to take tasks from; empty: all")
    per_level: int = Field(
        default=40, ge=1, le=100_000, description="training tasks per curriculum level; half as many more are held out"
    )
    output_chars: int = Field(
        default=4000, ge=40, le=1_000_000, description="most characters of an output in the next prompt, head and tail"
    )
    screenshot_backend: Browser = Field(default="playwright", description="browser driver of gui")
    screenshots: Screenshots = Field(
        default="keep",
        description="screenshots of gui: kept in the run directory, also sent to a vision model, or off",
    )
    pages: Location | None = Field(
        default=None, description="JSONL file with tasks on your own pages, for gui; not set: MiniWoB++"
    )
    folder: Location | None = Field(
        default=None, description="folder with the tasks for harbor, or with the installed package of a task set"
    )
    tools_config: Location | None = Field(default=None, description="JSON file with the functions for toolcall")
    sandbox: SandboxSection = Field(default_factory=SandboxSection)
    swe_bench_path: Location | None = Field(default=None, description="folder with the instances for swe")
    options: Options = Field(default_factory=dict, repr=False, description="free-form table for the environment")


class GpuSection(Section):
    """GPU assignment: a count, or a list of device numbers. Nothing set: a layout that fits this machine."""

    total: int | None = Field(default=None, ge=0, le=65536, description="total GPUs; not set: all on this machine")
    train: Share | None = Field(default=None, description="GPUs of the trainer; not set: half of them")
    rollout: Share | None = Field(default=None, description="GPUs of the serving engine; not set: a quarter of them")
    judge: Share | None = Field(default=None, description="GPUs of the judge; not set: one, or the engine's")
    teacher: Share | None = Field(default=None, description="GPUs of the teacher; it runs in the trainer, on its GPUs")
    turns: bool = Field(
        default=False,
        description="vLLM or SGLang on the trainer's GPU sleeps during a training step and requests wait; off: both"
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
    """Service prices per million tokens, from its price list, in the currency of `daily_budget`."""

    prefill: float = Field(default=0.0, ge=0, le=1e6, description="reading a prompt, and scoring a reply")
    sample: float = Field(default=0.0, ge=0, le=1e6, description="generating a reply")
    train: float = Field(default=0.0, ge=0, le=1e6, description="a pass of training, forward alone or forward and back")


class CloudSection(Section):
    """Remote training: Tinker, and servers that implement its protocol."""

    tinker_api_key: SecretStr | None = Field(default=None, description="key of Tinker; best given as TINKER_API_KEY")
    tinker_endpoint: Address | None = Field(default=None, description="address of Tinker; not set: its public address")
    tokenizer: Weights | None = Field(
        default=None, description="folder or Hugging Face id of the tokenizer; not set: policy.model's"
    )
    download: bool = Field(
        default=False, description="also download each version's adapter, so that your own engine can serve it"
    )
    daily_budget: float | None = Field(
        default=None, gt=0, description="spending limit per day (UTC), by the prices; not set: no limit"
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
