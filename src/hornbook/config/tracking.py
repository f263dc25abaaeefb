"""What a run logs, how often, and which trackers get it."""

from dataclasses import dataclass

from hornbook.config.options import Problem, option


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """How often to log metrics and text samples, and the trackers that get them as well."""

    log_every_steps: int = option(10, help="steps between rows of metrics", minimum=1)
    sample_every_steps: int | None = option(None, help="steps between text samples; none: no samples", minimum=1)
    sample_tokens: int = option(64, help="tokens per text sample", minimum=1)
    trackers: tuple[str, ...] = option(
        (), help="trackers that get metrics and samples, too: tensorboard, wandb, mlflow, trackio"
    )
    project: str = option("hornbook", help="project of the run at the trackers; MLflow's experiment")
    histogram_every_steps: int | None = option(
        None, help="steps between histograms of weights and gradients at the trackers; none: no histograms", minimum=1
    )

    def problems(self) -> list[Problem]:
        """List conflicting options."""
        if self.histogram_every_steps is not None and not self.trackers:
            message = "histogram_every_steps has no effect without trackers; set them, or remove it"
            return [Problem(("histogram_every_steps", "trackers"), message)]
        if len(set(self.trackers)) < len(self.trackers):
            return [Problem(("trackers",), "trackers names one twice; remove it")]
        return []
