"""The settings as one typed tree. Each is declared once, here, with what it does, its range and its default.

    Config = run + serve (limits) + policy (sampling) + store + collect + judge (llm)
           + train (loss, optim, lora, local, alarms) + gate (limits) + monitor + eval + env + gpus + cloud

A setting that may be absent is ``None``; from a file or the environment the empty text means absent.
A relative path starts at the working directory, whatever source names it, and is kept as an absolute one.
`config` reads the tree from its sources; nothing here reads anything.
"""

from __future__ import annotations

from typing import Final, Literal

import platformdirs
from pydantic import Field, SecretStr, field_validator

from openclaw_rl.config.values import Address, Device, Location, Options, Section, Share, Sharing, Variable

Method = Literal["topk", "binary", "opd", "distill", "combine"]
EvalTask = Literal["conversation", "coding", "tool-use"]
Advantage = Literal["baseline", "raw", "group"]
HintSelection = Literal["sequence_optimal", "token_optimal", "shortest"]
Subset = Literal["student", "teacher", "overlap"]
Teacher = Literal["base", "live", "ema"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
ToolFormat = Literal["auto", "hermes", "llama", "pythonic", "none"]
Sync = Literal["normal", "full"]
Browser = Literal["playwright", "selenium"]
LogLevel = Literal["debug", "info", "warning", "error"]
Sink = Literal["tensorboard", "trackio", "wandb"]

ADAPTER_LR: Final = 5e-4
FULL_LR: Final = ADAPTER_LR / 10
"""a full tune moves every weight, so its steps are about a tenth of an adapter's"""


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
        description="seconds that open streams, then steps under way, get to finish at shutdown",
    )


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
    no_train_users: tuple[str, ...] = Field(default=(), description="users whose turns are never trained on")
    redact: bool = Field(default=True, description="mask e-mail, phone, card and key patterns before anything is kept")
    store_optouts: bool = Field(
        default=True, description="keep turns whose client switched training off; off: no trace"
    )
    cors_origins: tuple[str, ...] = Field(default=(), description="web origins that may call the API; empty: none")
    limits: ServeLimitsSection = Field(default_factory=ServeLimitsSection)


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

    backend: str = Field(default="local", min_length=1, description="local, fake or a plugin")
    model: str = Field(
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
    generate: str | None = Field(default=None, description="custom generate function, a plugin")
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    options: Options = Field(default_factory=dict, repr=False, description="free table handed to the backend")


class StoreSection(Section):
    """The ledger."""

    sync: Sync = Field(default="full", description="normal outlives a killed process, full also a power cut")


class CollectSection(Section):
    """Loop 2, turns to outcomes."""

    session_idle: float = Field(default=1800.0, gt=0, le=604_800, description="seconds of silence that end a session")
    starve_turns: int = Field(default=20, ge=1, le=100_000, description="alarm after so many turns with none trainable")


class LlmJudgeSection(Section):
    """The llm judge: a model that votes on each turn."""

    base_url: Address | None = Field(default=None, description="address of the llm judge, OpenAI-compatible, up to /v1")
    model: str | None = Field(default=None, description="its model; 'policy': the policy's own base weights")
    api_key_env: Variable | None = Field(default=None, description="environment variable that holds the endpoint's key")
    votes: int = Field(default=3, ge=1, le=99, description="votes per turn")
    threshold: float = Field(default=0.5, gt=0, le=1, description="share of the answers that the winning score needs")
    quorum: int | None = Field(default=None, ge=1, le=99, description="answers a score needs; not set: more than half")
    temperature: float = Field(default=0.6, ge=0, le=2, description="temperature of the votes")
    max_tokens: int = Field(default=512, ge=16, le=32768, description="most tokens of one answer")
    deadline: float = Field(default=60.0, gt=0, le=3600, description="seconds one vote may take")
    retries: int = Field(default=3, ge=0, le=20, description="further tries after 429, 5xx or a timeout")
    breaker_failures: int = Field(default=5, ge=1, le=1000, description="failures in a row that pause judging")
    breaker_seconds: float = Field(default=60.0, gt=0, le=86_400, description="length of that pause")
    daily_tokens: int | None = Field(default=None, ge=0, description="tokens it may use a day; not set: no limit")
    history: int = Field(default=6, ge=0, le=1000, description="messages before the reply that it sees")
    evidence_tokens: int = Field(default=3000, ge=64, description="its tokens that each piece of evidence is cut to")
    prompts_dir: Location | None = Field(default=None, description="folder with prompts that replace the shipped ones")


class JudgeSection(Section):
    """Loop 3, outcomes to verdicts."""

    kind: str = Field(
        default="auto", min_length=1, description="who judges: auto (rules, then llm if one is set), rules, llm"
    )
    custom: str | None = Field(default=None, description="judge of your own in place of kind, a plugin")
    workers: int = Field(default=4, ge=1, le=256, description="judge calls at once")
    max_hints: int = Field(default=3, ge=0, le=16, description="most hints kept per turn, shortest first")
    hint_min: int = Field(default=11, ge=1, le=10_000, description="fewest characters of a hint")
    hint_max: int = Field(default=600, ge=1, le=10_000, description="most characters of a hint")
    trusted_envs: tuple[str, ...] = Field(
        default=(), description="environments, by the NAME of their key, whose text may become a hint"
    )
    llm: LlmJudgeSection = Field(default_factory=LlmJudgeSection)
    options: Options = Field(default_factory=dict, repr=False, description="free table handed to a custom judge")


class LossSection(Section):
    """The loss: what a sample's score and hints pull at."""

    custom: str | None = Field(default=None, description="custom loss in place of train.method, a plugin")
    w_rl: float = Field(default=1.0, ge=0, le=1000, description="weight of the policy-gradient term; 0: OPD only")
    w_opd: float = Field(default=1.0, ge=0, le=1000, description="weight of distillation; 0: GRPO only")
    k: int = Field(default=4, ge=1, le=4096, description="vocabulary entries compared at each token")
    clip: float = Field(
        default=1.0, ge=-1000, le=1000, description="clamp of the teacher's log-prob gap; 0 or less: none"
    )
    hint_selection: HintSelection = Field(
        default="sequence_optimal", description="which hint teaches: best overlap or shortest"
    )
    subset: Subset = Field(default="student", description="whose best k entries are compared; overlap: both's")
    kl: Literal["full", "k3"] = Field(
        default="full", description="KL penalty to the base model: exact, or estimated from samples"
    )
    kl_coef: float = Field(default=0.05, ge=0, le=100, description="weight of that penalty; it keeps replies relevant")
    aggregate: Literal["token", "sample"] = Field(
        default="token", description="average over all tokens, or samples first"
    )
    eps_low: float = Field(default=0.2, ge=0, le=1, description="lower clip of the ratio: 1 - eps_low")
    eps_high: float = Field(default=0.28, ge=0, le=100, description="upper clip of the ratio: 1 + eps_high")
    max_mismatch: float = Field(
        default=2.0, ge=1, le=1000, description="mask tokens whose trainer to engine ratio is beyond"
    )
    teacher: Teacher = Field(default="base", description="weights that see the hint; ema: a moving mean")
    teacher_model: str | None = Field(default=None, description="other weights as teacher: Hugging Face id or folder")
    ema_decay: float = Field(default=0.99, ge=0, lt=1, description="decay of the moving average for teacher = ema")


class OptimSection(Section):
    """The optimizer, AdamW."""

    lr: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description=f"learning rate; not set: {ADAPTER_LR} for an adapter, {FULL_LR} for a full tune",
    )
    lr_by_signal: bool = Field(
        default=True, description="smaller steps, and more averaged, for a batch that says little, as thanks alone do"
    )
    average: int = Field(
        default=1, ge=1, le=1000, description="steps over which the weights that are served are averaged; 1: the newest"
    )
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="weight decay")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the mean gradient")
    adam_beta2: float = Field(default=0.95, ge=0, lt=1, description="decay of the mean squared gradient")
    grad_clip: float = Field(default=1.0, ge=0, le=1e6, description="largest norm of the gradient; 0: no limit")


class LoraSection(Section):
    """LoRA adapters; without them every weight is tuned."""

    enabled: bool = Field(default=True, description="train an adapter; off: full fine-tuning")
    rank: int = Field(default=16, ge=1, le=1024, description="rank of the adapter")
    alpha: float = Field(default=32.0, gt=0, le=4096, description="scale of the adapter; it acts with alpha / rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout inside the adapter")
    targets: tuple[str, ...] = Field(default=(), description="names of the layers to adapt; empty: all linear layers")


class LocalTrainingSection(Section):
    """How the trainer on this machine computes; it changes speed and memory, not what is learned."""

    device: Device = Field(default="auto", description="auto, cpu, mps, cuda or cuda:N")
    threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads of the trainer; not set: all")
    tree: bool = Field(default=True, description="compute shared beginnings once; off: one sequence per turn")
    micro_tokens: int | None = Field(
        default=None, ge=64, description="tokens of a forward pass; not set: as memory allows"
    )
    recompute: bool | None = Field(
        default=None,
        description="gradient checkpointing, less memory for more arithmetic; not set: for batches that need it",
    )
    compile: bool | None = Field(
        default=None,
        description="fuse the layers' arithmetic by compiling them; not set: on CUDA from a billion weights",
    )
    offload_optimizer: bool = Field(default=False, description="keep optimizer state in main memory")


class AlarmsSection(Section):
    """What skips a step, and when skipped steps pause training."""

    gap: float = Field(default=0.05, gt=0, le=100, description="skip a step with a mean log-prob gap above")
    ess: float = Field(default=0.3, ge=0, le=1, description="skip a step with an effective sample size below")
    norm: float = Field(default=10.0, gt=1, le=1e6, description="skip a step with so many times the median norm")
    pause_after: int = Field(default=3, ge=1, le=1000, description="alarms in a row that pause training, never serving")


class TrainSection(Section):
    """Loop 4, verdicts to versions."""

    backend: str = Field(default="local", min_length=1, description="local, fake or a plugin")
    method: Method = Field(
        default="topk",
        description="how a turn trains: topk, or scores (binary), hints (opd, distill) or both (combine)",
    )
    batch_size: int = Field(default=16, ge=1, le=65536, description="samples of one step")
    max_wait: float = Field(default=600.0, ge=0, le=604_800, description="seconds until a smaller batch is trained")
    idle_wait: float = Field(default=60.0, ge=0, le=604_800, description="seconds without requests until it is")
    num_rollouts_per_prompt: int = Field(default=1, ge=1, le=1024, description="episodes of each environment task")
    rollout: str | None = Field(default=None, description="custom rollout function, a plugin")
    data: tuple[Location, ...] = Field(default=(), description="files of conversations for 'train', which then ends")
    max_lag: int = Field(default=4, ge=0, le=10_000, description="versions a sample may be behind")
    train_truncated: bool = Field(default=False, description="also train replies cut off by their token limit")
    advantage: Advantage = Field(
        default="baseline", description="score less its moving mean, bare score, score less group mean"
    )
    normalize: bool = Field(default=False, description="divide group advantages by the group's standard deviation")
    baseline_decay: float = Field(default=0.95, ge=0, lt=1, description="decay of a user's moving mean of scores")
    remember: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="for how many of a user's next turns a rule that they gave goes on teaching; 0: for none",
    )
    share: Sharing = Field(
        default="none",
        description="whose rules teach when several keys share the policy, since what one rule teaches all are served: "
        "none, all, or how many people must have given the same rule; scores always teach, and so does a lone user",
    )
    save_dir: Location | None = Field(
        default=None, description="folder of versions; not set: inside the run's directory"
    )
    save_interval: int = Field(default=10, ge=1, description="steps between checkpoints that are never deleted")
    keep: int = Field(default=5, ge=2, le=100_000, description="newest versions kept beside those, for rollback")
    resume: Location | None = Field(
        default=None, description="checkpoint to go on from; not set: where the ledger stands"
    )
    loss: LossSection = Field(default_factory=LossSection)
    optim: OptimSection = Field(default_factory=OptimSection)
    lora: LoraSection = Field(default_factory=LoraSection)
    local: LocalTrainingSection = Field(default_factory=LocalTrainingSection)
    alarms: AlarmsSection = Field(default_factory=AlarmsSection)
    options: Options = Field(default_factory=dict, repr=False, description="free table handed to the trainer")

    @property
    def learning_rate(self) -> float:
        """``optim.lr``; where it is not set, the rate that suits an adapter or a full tune."""
        return self.optim.lr or (ADAPTER_LR if self.lora.enabled else FULL_LR)


class GateLimitsSection(Section):
    """What the gate tolerates of a candidate beside the live version and the base model."""

    alpha: float = Field(default=0.05, gt=0, le=0.5, description="chance that a comparison mistakes noise for worse")
    kl_budget: float = Field(default=1.5, gt=0, le=100, description="nats per token it may be away from the base")
    ability_drop: float = Field(default=0.15, ge=0, le=1, description="share of small tasks it may lose to the base")
    likelihood_drop: float = Field(default=0.3, ge=0, le=100, description="nats per token pinned replies may lose")
    correction_drop: float = Field(default=0.05, ge=0, le=100, description="nats per token corrections may lose")
    min_words: float = Field(default=6.0, ge=0, le=1000, description="fewest words of a reply, on average")
    length_ratio: float = Field(default=0.2, ge=0, le=1, description="fewest words as a share of the live version's")
    entropy_ratio: float = Field(default=3.0, gt=1, le=100, description="factor by which entropy may grow or shrink")
    degenerate: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="share of replies that may degenerate beyond the live version's and the base's",
    )
    relevance_drop: float = Field(
        default=0.25, ge=0, le=1, description="share of replies that may lose relevance to the base"
    )


class GateSection(Section):
    """The gate: the examination of a candidate before it is served."""

    mode: Literal["on", "off"] = Field(
        default="on", description="examine each version before it is served; off: serve it unexamined"
    )
    probes: int = Field(default=6, ge=1, le=64, description="held-out prompts that both versions answer")
    replays: int = Field(default=4, ge=0, le=64, description="past corrections and pinned turns that are read again")
    tokens: int = Field(default=28, ge=8, le=1024, description="most tokens of a reply to a probe")
    retry: float = Field(default=30.0, ge=0, le=86_400, description="seconds until a held candidate is tried again")
    limits: GateLimitsSection = Field(default_factory=GateLimitsSection)


class MonitorSection(Section):
    """The live monitor: rolls back automatically when served replies become worse."""

    mode: Literal["on", "off"] = Field(default="on", description="off: nothing is rolled back automatically")
    alpha: float = Field(default=0.01, gt=0, le=0.5, description="chance of a false alarm per promoted version")
    window: int = Field(default=40, ge=4, le=10_000, description="scored turns for which a promotion is monitored")
    reference: int = Field(default=40, ge=8, le=10_000, description="scored turns before it that count as normal")
    least: float = Field(default=0.2, gt=0, lt=1, description="rate of bad turns up to which there is no alarm")


class EvalSection(Section):
    """Evaluation of a version, a folder or an address."""

    tasks: tuple[EvalTask, ...] = Field(default=("conversation", "coding", "tool-use"), description="suites to run")


class EnvSection(Section):
    """Environments: clients whose reply is the next state."""

    type: str | None = Field(default=None, description="the environment of the episodes, a plugin")
    max_steps: int = Field(default=20, ge=1, le=100_000, description="most replies in one episode")
    parallel: int = Field(default=4, ge=1, le=4096, description="episodes at once")
    max_pending: int = Field(default=256, ge=1, description="untrained turns at which episodes wait; users never do")
    screenshot_backend: Browser = Field(default="playwright", description="browser driver of gui")
    tools_config: Location | None = Field(default=None, description="JSON file with the functions of toolcall")
    swe_bench_path: Location | None = Field(default=None, description="folder with the repositories of swe")
    options: Options = Field(default_factory=dict, repr=False, description="free table handed to the environment")


class GpuSection(Section):
    """Who gets which GPU: a count, or a list of device numbers."""

    total: int | None = Field(default=None, ge=0, le=65536, description="GPUs in all; not set: those of this machine")
    train: Share | None = Field(default=None, description="GPUs of the trainer; not set: it shares")
    rollout: Share | None = Field(default=None, description="GPUs of the serving engine; not set: it shares")
    judge: Share | None = Field(default=None, description="GPUs of the judge; not set: it shares")
    teacher: Share | None = Field(default=None, description="GPUs of the teacher; not set: it shares")

    @field_validator("train", "rollout", "judge", "teacher")
    @classmethod
    def _devices(cls, share: Share | None) -> Share | None:
        numbers = share if isinstance(share, tuple) else (share or 0,)
        if min(numbers, default=-1) < 0 or len(set(numbers)) < len(numbers):
            raise ValueError("must be a count of at least 0, or a list of different device numbers from 0")
        return share


class CloudSection(Section):
    """Machines elsewhere."""

    tinker_api_key: SecretStr | None = Field(default=None, description="key of Tinker; best given as TINKER_API_KEY")
    tinker_endpoint: Address | None = Field(default=None, description="address of Tinker; not set: its own")


class Config(Section):
    """All settings."""

    run: RunSection = Field(default_factory=RunSection)
    serve: ServeSection = Field(default_factory=ServeSection)
    policy: PolicySection = Field(default_factory=PolicySection)
    store: StoreSection = Field(default_factory=StoreSection)
    collect: CollectSection = Field(default_factory=CollectSection)
    judge: JudgeSection = Field(default_factory=JudgeSection)
    train: TrainSection = Field(default_factory=TrainSection)
    gate: GateSection = Field(default_factory=GateSection)
    monitor: MonitorSection = Field(default_factory=MonitorSection)
    eval: EvalSection = Field(default_factory=EvalSection)
    env: EnvSection = Field(default_factory=EnvSection)
    gpus: GpuSection = Field(default_factory=GpuSection)
    cloud: CloudSection = Field(default_factory=CloudSection)
