"""The settings of loop 4, which trains, and of what decides about the versions it makes."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from openclaw_rl.config.values import Device, Location, Options, Plugin, Section, Sharing, Weights

Method = Literal[
    "topk", "binary", "opd", "distill", "combine", "gspo", "cispo", "dr_grpo", "dapo", "reinforce++", "rloo"
]
Advantage = Literal["baseline", "raw", "group"]
Credit = Literal["step", "trajectory", "outcome"]
HintSelection = Literal["sequence_optimal", "token_optimal", "shortest"]
Subset = Literal["student", "teacher", "overlap"]
Teacher = Literal["base", "live", "ema"]

ADAPTER_LR: Final = 5e-4
FULL_LR: Final = ADAPTER_LR / 10
"""a full tune moves every weight, so its steps are about a tenth of an adapter's"""
REHEARSAL_LR: Final = 1.5e-3
"""a rehearsal samples its own replies and may take large steps: they become smaller, and their average is served"""
REHEARSAL_WIDTH: Final = 576
"""the width of the embedded model, with which that rate was measured; of a wider one it is smaller in proportion"""


class LossSection(Section):
    """The loss: what a sample's score and hints pull at."""

    custom: Plugin | None = Field(default=None, description="custom loss in place of train.method, a plugin")
    config: Options = Field(default_factory=dict, repr=False, description="free table handed to a custom loss")
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
    aggregate: Literal["token", "sample", "constant"] = Field(
        default="token", description="average over all tokens, samples first, or sum a reply over a constant"
    )
    eps_low: float = Field(default=0.2, ge=0, le=1, description="lower clip of the ratio: 1 - eps_low")
    eps_high: float = Field(default=0.28, ge=0, le=100, description="upper clip of the ratio: 1 + eps_high")
    max_mismatch: float = Field(
        default=2.0, ge=1, le=1000, description="mask tokens whose trainer to engine ratio is beyond"
    )
    importance_cap: float = Field(
        default=2.0, ge=1, le=1000, description="most weight of a token that the trainer finds likelier than the engine"
    )
    teacher: Teacher = Field(default="base", description="weights that see the hint; ema: a moving mean")
    teacher_model: Weights | None = Field(
        default=None, description="other weights as teacher: Hugging Face id or folder"
    )
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
    ranks: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="processes that share a step, each with a part of the batch and of every layer; not set: one for"
        " each GPU that gpus.train gives, else one",
    )
    nodes: int = Field(
        default=1,
        ge=1,
        le=512,
        description="nodes of a Ray cluster that the ranks are on, as many on each, for a model that one node's GPUs"
        " cannot train; they must share the run directory",
    )
    shard_frozen: bool | None = Field(
        default=None,
        description="divide weights that are not trained among the ranks too, less memory for more messages; not set:"
        " where a whole copy would take a quarter of a rank's memory",
    )
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


class RehearseSection(Section):
    """Rehearsal: what a note asks for is learned from replies sampled for it, while nobody waits for the machine."""

    enabled: bool = Field(
        default=True, description="rehearse notes in idle time until the policy does without them; off: they stay notes"
    )
    steps: int = Field(default=16, ge=1, le=1000, description="most steps for one note before the gate decides")
    seconds: float | None = Field(
        default=None,
        gt=0,
        description="about so much idle time for one note: fewer steps where the machine is slow, at least 12;"
        " not set: all of them",
    )
    batch: int = Field(default=8, ge=1, le=4096, description="replies sampled for a step")
    prompts: int = Field(
        default=32,
        ge=1,
        le=10_000,
        description="different prompts of the user's own past; while these are fewer, everyday ones are added",
    )
    held_back: int = Field(
        default=16, ge=2, le=1000, description="prompts that are never rehearsed, on which the stop is decided"
    )
    replay: float = Field(
        default=0.25, ge=0, le=0.9, description="share of a step that repeats notes which were learned before"
    )
    loss: Literal["auto", "reverse", "forward", "sft"] = Field(
        default="auto",
        description="KL to the teacher with the note; forward: the other way round; sft: so on the teacher's good"
        " replies; auto: sft while the teacher says half as much as the policy or less, then reverse",
    )
    reward: float = Field(
        default=1.0,
        ge=0,
        le=10,
        description="how much a reply of the policy that does what the note asks and is about the question counts for"
        " more than one that does not, beside the KL, which alone comes no nearer than its teacher; 0: the KL alone",
    )
    teacher: Teacher = Field(
        default="base", description="weights that see the note; live: as they were when the rehearsal began"
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="learning rate of its first step, which falls to a fifth by the last;"
        f" not set: {REHEARSAL_LR} for an adapter, {REHEARSAL_LR / 10} for a full tune, and less for a model wider than"
        f" {REHEARSAL_WIDTH}, in proportion",
    )
    decay: float = Field(
        default=0.75, ge=0, lt=1, description="decay of the average of its steps, which is what is served"
    )
    temperature: float = Field(default=0.6, gt=0, le=2, description="temperature of its replies")
    tokens: int = Field(default=160, ge=8, le=8192, description="most tokens of a reply")
    idle: float = Field(
        default=10.0, ge=0, le=604_800, description="seconds without any request before a rehearsal begins or goes on"
    )
    tolerance: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="how much more rarely than with its note replies may do what it asks for it to count as learned",
    )


class AlarmsSection(Section):
    """What skips a step, and when skipped steps pause training."""

    gap: float = Field(default=0.05, gt=0, le=100, description="skip a step with a mean log-prob gap above")
    ess: float = Field(default=0.3, ge=0, le=1, description="skip a step with an effective sample size below")
    norm: float = Field(default=10.0, gt=1, le=1e6, description="skip a step with so many times the median norm")
    pause_after: int = Field(default=3, ge=1, le=1000, description="alarms in a row that pause training, never serving")


class TrainSection(Section):
    """Loop 4, verdicts to versions."""

    backend: Plugin = Field(default="local", min_length=1, description="local, tinker, fake or a plugin")
    method: Method = Field(
        default="topk",
        description="how a turn trains: topk, or scores (binary), hints (opd, distill) or both (combine)",
    )
    batch_size: int = Field(default=16, ge=1, le=65536, description="samples of one step")
    max_wait: float = Field(default=600.0, ge=0, le=604_800, description="seconds until a smaller batch is trained")
    idle_wait: float = Field(default=60.0, ge=0, le=604_800, description="seconds without requests until it is")
    num_rollouts_per_prompt: int = Field(default=1, ge=1, le=1024, description="episodes of each environment task")
    rollout: Plugin | None = Field(default=None, description="custom rollout function, a plugin")
    data: tuple[Location, ...] = Field(
        default=(),
        description="files or folders of conversations: 'up' trains on them while it serves, 'train' on them alone",
    )
    max_lag: int = Field(default=4, ge=0, le=10_000, description="versions a sample may be behind")
    train_truncated: bool = Field(default=False, description="also train replies cut off by their token limit")
    advantage: Advantage = Field(
        default="baseline", description="score less its moving mean, bare score, score less group mean"
    )
    normalize: bool = Field(default=False, description="divide group advantages by the group's standard deviation")
    credit: Credit = Field(
        default="step",
        description="what a step of an environment is measured by, against the other episodes of its task: outcome "
        "and its own votes, at the same step; the episode's outcome and mean vote (trajectory); the outcome alone",
    )
    credit_scaled: bool | None = Field(
        default=None, description="divide credit by the standard deviation of the group; not set: as the method does"
    )
    step_weight: float = Field(
        default=1.0, ge=0, le=100, description="weight of a step's votes beside the outcome of its episode"
    )
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
    rehearse: RehearseSection = Field(default_factory=RehearseSection)
    options: Options = Field(default_factory=dict, repr=False, description="free table handed to the trainer")

    @property
    def learning_rate(self) -> float:
        """``optim.lr``; where it is not set, the rate that suits an adapter or a full tune."""
        return self.optim.lr or (ADAPTER_LR if self.lora.enabled else FULL_LR)

    @property
    def rehearsal_rate(self) -> float:
        """``rehearse.lr``; where it is not set, the rate that suits an adapter or a full tune."""
        return self.rehearse.lr or (REHEARSAL_LR if self.lora.enabled else REHEARSAL_LR / 10)

    @property
    def rehearsal_width(self) -> int | None:
        """The width of the model that this rate suits; None where ``rehearse.lr`` sets it for the model in use."""
        return None if self.rehearse.lr else REHEARSAL_WIDTH


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
    rehearsal_drop: float = Field(
        default=0.2, ge=0, le=1, description="the same of a version that rehearsed a note; more leaves the note a note"
    )


class GateSection(Section):
    """The gate: the examination of a candidate before it is served."""

    mode: Literal["on", "off"] = Field(
        default="on", description="examine each version before it is served; off: serve it unexamined"
    )
    probes: int = Field(default=6, ge=1, le=64, description="held-out prompts that both versions answer")
    rehearsal_probes: int = Field(
        default=40, ge=8, le=128, description="further ones that a version which rehearsed a note answers"
    )
    replays: int = Field(default=4, ge=0, le=64, description="past corrections and pinned turns that are read again")
    tokens: int = Field(default=28, ge=8, le=1024, description="most tokens of a reply to a probe")
    tasks: int = Field(
        default=16, ge=0, le=1000, description="held-out tasks of the environment (env.type) that both versions play"
    )
    retry: float = Field(default=30.0, ge=0, le=86_400, description="seconds until a held candidate is tried again")
    limits: GateLimitsSection = Field(default_factory=GateLimitsSection)


class MonitorSection(Section):
    """The live monitor: rolls back automatically when served replies become worse."""

    mode: Literal["on", "off"] = Field(default="on", description="off: nothing is rolled back automatically")
    alpha: float = Field(default=0.01, gt=0, le=0.5, description="chance of a false alarm per promoted version")
    window: int = Field(default=40, ge=4, le=10_000, description="scored turns for which a promotion is monitored")
    reference: int = Field(default=40, ge=8, le=10_000, description="scored turns before it that count as normal")
    least: float = Field(default=0.2, gt=0, lt=1, description="rate of bad turns up to which there is no alarm")
