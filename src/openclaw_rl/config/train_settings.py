"""Settings for loop 4, which trains, and for the gate and the monitor that decide on its versions."""

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
DISTILLATION_LR: Final = 1.5e-3
"""prompt distillation samples its own replies and may take large steps: they shrink, and their average is served"""
DISTILLATION_WIDTH: Final = 576
"""width of the embedded model, for which that rate was measured; wider models use a proportionally smaller rate"""


class LossSection(Section):
    """The loss: the terms that a sample's score and hints feed."""

    custom: Plugin | None = Field(default=None, description="custom loss in place of train.method, a plugin")
    config: Options = Field(default_factory=dict, repr=False, description="free-form table for a custom loss")
    w_rl: float = Field(default=1.0, ge=0, le=1000, description="weight of the policy-gradient term; 0: OPD only")
    w_opd: float = Field(default=1.0, ge=0, le=1000, description="weight of distillation; 0: GRPO only")
    k: int = Field(default=4, ge=1, le=4096, description="vocabulary entries compared at each token")
    clip: float = Field(
        default=1.0, ge=-1000, le=1000, description="clamp of the teacher's log-prob gap; 0 or less: none"
    )
    hint_selection: HintSelection = Field(
        default="sequence_optimal", description="hint that teaches: best overlap or shortest"
    )
    subset: Subset = Field(
        default="student", description="model whose best k entries are compared; overlap: those in both"
    )
    kl: Literal["full", "k3"] = Field(
        default="full", description="KL penalty to the base model: exact, or estimated from samples"
    )
    kl_coef: float = Field(
        default=0.05, ge=0, le=100, description="weight of the KL penalty, which keeps replies relevant"
    )
    aggregate: Literal["token", "sample", "constant"] = Field(
        default="token",
        description="average over all tokens, over each sample first, or divide a reply's sum by a constant",
    )
    eps_low: float = Field(default=0.2, ge=0, le=1, description="lower clip of the ratio: 1 - eps_low")
    eps_high: float = Field(default=0.28, ge=0, le=100, description="upper clip of the ratio: 1 + eps_high")
    max_mismatch: float = Field(
        default=2.0, ge=1, le=1000, description="mask tokens whose ratio between trainer and engine is beyond this"
    )
    importance_cap: float = Field(
        default=2.0,
        ge=1,
        le=1000,
        description="largest weight for a token with a higher probability in the trainer than in the engine",
    )
    teacher: Teacher = Field(
        default="base", description="weights that score a reply under the hint; ema: a moving average"
    )
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
        default=True,
        description="smaller steps, with more averaging, for a batch with little signal, such as thanks alone",
    )
    average: int = Field(
        default=1, ge=1, le=1000, description="number of steps averaged into the served weights; 1: the newest alone"
    )
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="weight decay")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the mean gradient")
    adam_beta2: float = Field(default=0.95, ge=0, lt=1, description="decay of the mean squared gradient")
    grad_clip: float = Field(default=1.0, ge=0, le=1e6, description="largest gradient norm; 0: no limit")


class LoraSection(Section):
    """LoRA adapters; without them every weight is tuned."""

    enabled: bool = Field(default=True, description="train an adapter; off: full fine-tuning")
    rank: int = Field(default=16, ge=1, le=1024, description="rank of the adapter")
    alpha: float = Field(default=32.0, gt=0, le=4096, description="adapter scale; its effect is alpha / rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout inside the adapter")
    targets: tuple[str, ...] = Field(default=(), description="names of the layers to adapt; empty: all linear layers")


class LocalTrainingSection(Section):
    """Computation in the local trainer: speed and memory, with the same learning result."""

    device: Device = Field(default="auto", description="auto, cpu, mps, cuda or cuda:N")
    threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads of the trainer; not set: all")
    ranks: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="processes that share a step, each with a part of the batch and of every layer; not set: one for"
        " each GPU in gpus.train, else one",
    )
    nodes: int = Field(
        default=1,
        ge=1,
        le=512,
        description="Ray cluster nodes with an equal number of ranks each, for a model too large for one node's GPUs;"
        " they must share the run directory",
    )
    shard_frozen: bool | None = Field(
        default=None,
        description="also divide untrained weights among the ranks: less memory, more messages; not set: where a full"
        " copy would take a quarter of a rank's memory",
    )
    tree: bool = Field(default=True, description="compute shared prefixes once; off: one sequence per turn")
    micro_tokens: int | None = Field(
        default=None, ge=64, description="tokens in one forward pass; not set: as memory allows"
    )
    recompute: bool | None = Field(
        default=None,
        description="gradient checkpointing: less memory, more arithmetic; not set: for batches that need it",
    )
    compile: bool | None = Field(
        default=None,
        description="compile the layers to fuse their arithmetic; not set: on CUDA from a billion weights",
    )
    offload_optimizer: bool = Field(default=False, description="keep optimizer state in main memory")


class PromptDistillationSection(Section):
    """Prompt distillation: the policy learns a note from replies sampled for it, during idle time."""

    enabled: bool = Field(
        default=True,
        description="distill notes in idle time until the policy follows them without the note; off: they stay notes",
    )
    steps: int = Field(default=16, ge=1, le=1000, description="most steps for one note before the gate decides")
    seconds: float | None = Field(
        default=None,
        gt=0,
        description="approximate idle time for one note: fewer steps on a slow machine, at least 12; not set: all"
        " steps",
    )
    batch: int = Field(default=8, ge=1, le=4096, description="replies sampled for one step")
    prompts: int = Field(
        default=32,
        ge=1,
        le=10_000,
        description="distinct prompts from the user's own history; a shorter history is completed with everyday"
        " prompts",
    )
    held_back: int = Field(
        default=16, ge=2, le=1000, description="prompts excluded from training, used to decide when to stop"
    )
    replay: float = Field(default=0.25, ge=0, le=0.9, description="share of a step that repeats notes learned earlier")
    loss: Literal["auto", "reverse", "forward", "sft"] = Field(
        default="auto",
        description="KL to the teacher with the note; forward: KL in the other direction; sft: the same on the"
        " teacher's good replies; auto: sft while the teacher's replies are at most half as long as the"
        " policy's, then reverse",
    )
    reward: float = Field(
        default=1.0,
        ge=0,
        le=10,
        description="weight of the reward for a reply that follows the note and answers the question, beside the KL,"
        " which alone cannot surpass its teacher; 0: the KL alone",
    )
    teacher: Teacher = Field(
        default="base", description="weights that see the note; live: those served when the distillation started"
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="learning rate of the first step, falling to a fifth by the last; not set:"
        f" {DISTILLATION_LR} for an adapter, {DISTILLATION_LR / 10:g} for a full tune, and less for a"
        f" model wider than {DISTILLATION_WIDTH},"
        f" in proportion",
    )
    decay: float = Field(
        default=0.75, ge=0, lt=1, description="decay of the moving average over the steps; the average is served"
    )
    temperature: float = Field(default=0.6, gt=0, le=2, description="sampling temperature for the replies")
    tokens: int = Field(default=160, ge=8, le=8192, description="most tokens in a reply")
    idle: float = Field(
        default=10.0,
        ge=0,
        le=604_800,
        description="seconds without any request before a distillation starts or continues",
    )
    tolerance: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="allowed drop in compliance against the prompted baseline for a learned note",
    )


class AlarmsSection(Section):
    """Thresholds that skip a step, and the number of skipped steps that pauses training."""

    gap: float = Field(default=0.05, gt=0, le=100, description="skip a step with a mean log-prob gap above this")
    ess: float = Field(default=0.3, ge=0, le=1, description="skip a step with an effective sample size below this")
    norm: float = Field(
        default=10.0, gt=1, le=1e6, description="skip a step whose gradient norm exceeds this many times the median"
    )
    pause_after: int = Field(
        default=3, ge=1, le=1000, description="consecutive alarms that pause training; serving continues"
    )


class TrainSection(Section):
    """Loop 4, from verdicts to versions."""

    backend: Plugin = Field(default="local", min_length=1, description="local, tinker, fake or a plugin")
    method: Method = Field(
        default="topk",
        description="training method: topk, or scores (binary), hints (opd, distill) or both (combine)",
    )
    batch_size: int = Field(default=16, ge=1, le=65536, description="samples in one step")
    max_wait: float = Field(default=600.0, ge=0, le=604_800, description="seconds before a smaller batch is trained")
    idle_wait: float = Field(
        default=60.0, ge=0, le=604_800, description="seconds without requests before a smaller batch is trained"
    )
    num_rollouts_per_prompt: int = Field(default=1, ge=1, le=1024, description="episodes for each environment task")
    rollout: Plugin | None = Field(default=None, description="custom rollout function, a plugin")
    data: tuple[Location, ...] = Field(
        default=(),
        description="files or folders of conversations: 'up' trains on them while it serves, 'train' on them alone",
    )
    max_lag: int = Field(default=4, ge=0, le=10_000, description="most versions a sample may be behind")
    train_truncated: bool = Field(default=False, description="also train replies cut off by their token limit")
    advantage: Advantage = Field(
        default="baseline", description="score minus its moving mean, bare score, score minus group mean"
    )
    normalize: bool = Field(default=False, description="divide group advantages by the group's standard deviation")
    credit: Credit = Field(
        default="step",
        description="measure for an environment step, against the task's other episodes: outcome and its own votes,"
        " at the same step; the episode's outcome and mean vote (trajectory); the outcome alone",
    )
    credit_scaled: bool | None = Field(
        default=None, description="divide credit by the group's standard deviation; not set: as the method does"
    )
    step_weight: float = Field(
        default=1.0, ge=0, le=100, description="weight of a step's votes relative to its episode's outcome"
    )
    baseline_decay: float = Field(default=0.95, ge=0, lt=1, description="decay of a user's moving mean of scores")
    remember: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="number of a user's next turns on which that user's rule continues to teach; 0: none",
    )
    share: Sharing = Field(
        default="none",
        description="rules that teach when several keys share the policy, since a learned rule affects every user:"
        " none, all, or the number of people who must give the same rule; scores always teach, and so does"
        " a single user",
    )
    save_dir: Location | None = Field(
        default=None, description="folder for versions; not set: inside the run's directory"
    )
    save_interval: int = Field(default=10, ge=1, description="steps between checkpoints that are never deleted")
    keep: int = Field(default=5, ge=2, le=100_000, description="newest versions kept in addition, for rollback")
    resume: Location | None = Field(
        default=None, description="checkpoint to resume from; not set: the ledger's latest state"
    )
    loss: LossSection = Field(default_factory=LossSection)
    optim: OptimSection = Field(default_factory=OptimSection)
    lora: LoraSection = Field(default_factory=LoraSection)
    local: LocalTrainingSection = Field(default_factory=LocalTrainingSection)
    alarms: AlarmsSection = Field(default_factory=AlarmsSection)
    prompt_distillation: PromptDistillationSection = Field(default_factory=PromptDistillationSection)
    options: Options = Field(default_factory=dict, repr=False, description="free-form table for the trainer")

    @property
    def learning_rate(self) -> float:
        """Return ``optim.lr``, or the default rate for an adapter or a full tune if it is not set."""
        return self.optim.lr or (ADAPTER_LR if self.lora.enabled else FULL_LR)

    @property
    def distillation_rate(self) -> float:
        """Return ``prompt_distillation.lr``, or the default rate for an adapter or a full tune if it is not set."""
        return self.prompt_distillation.lr or (DISTILLATION_LR if self.lora.enabled else DISTILLATION_LR / 10)

    @property
    def distillation_width(self) -> int | None:
        """Return the model width for this rate; None if ``lr`` is set for the model in use."""
        return None if self.prompt_distillation.lr else DISTILLATION_WIDTH


class GateLimitsSection(Section):
    """Tolerances for a candidate, measured against the live version and the base model."""

    alpha: float = Field(default=0.05, gt=0, le=0.5, description="chance that a comparison mistakes noise for a loss")
    kl_budget: float = Field(default=1.5, gt=0, le=100, description="largest distance from the base, in nats per token")
    ability_drop: float = Field(
        default=0.15, ge=0, le=1, description="share of small tasks that may be lost to the base"
    )
    likelihood_drop: float = Field(default=0.3, ge=0, le=100, description="nats per token pinned replies may lose")
    correction_drop: float = Field(default=0.05, ge=0, le=100, description="nats per token corrections may lose")
    min_words: float = Field(default=6.0, ge=0, le=1000, description="fewest words in a reply, on average")
    length_ratio: float = Field(default=0.2, ge=0, le=1, description="fewest words as a share of the live version's")
    entropy_ratio: float = Field(default=3.0, gt=1, le=100, description="factor by which entropy may grow or shrink")
    degenerate: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="share of degenerate replies allowed beyond the live version's and the base's",
    )
    relevance_drop: float = Field(
        default=0.25, ge=0, le=1, description="share of replies that may lose relevance to the base"
    )
    distillation_drop: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="the same limit for a version with a distilled note; beyond it the note stays in the prompt",
    )


class GateSection(Section):
    """The gate: the examination of a candidate before it is served."""

    mode: Literal["on", "off"] = Field(
        default="on", description="examine each version before it is served; off: serve it unexamined"
    )
    probes: int = Field(default=6, ge=1, le=64, description="held-out prompts that both versions answer")
    distillation_probes: int = Field(
        default=40, ge=8, le=128, description="additional probes for a version with a distilled note"
    )
    replays: int = Field(default=4, ge=0, le=64, description="past corrections and pinned turns to score again")
    tokens: int = Field(default=28, ge=8, le=1024, description="most tokens in a reply to a probe")
    tasks: int = Field(
        default=16, ge=0, le=1000, description="held-out environment tasks (env.type) that both versions play"
    )
    retry: float = Field(default=30.0, ge=0, le=86_400, description="seconds before a held candidate is examined again")
    limits: GateLimitsSection = Field(default_factory=GateLimitsSection)


class MonitorSection(Section):
    """The live monitor: rolls back automatically when served replies become worse."""

    mode: Literal["on", "off"] = Field(
        default="on", description="automatic rollback; off: versions are rolled back by request only"
    )
    alpha: float = Field(default=0.01, gt=0, le=0.5, description="chance of a false alarm per promoted version")
    window: int = Field(default=40, ge=4, le=10_000, description="scored turns for which a promotion is monitored")
    reference: int = Field(
        default=40, ge=8, le=10_000, description="scored turns before the promotion that serve as the baseline"
    )
    least: float = Field(default=0.2, gt=0, lt=1, description="highest rate of bad turns without an alarm")
