"""MLflow: a run on the server of ``MLFLOW_TRACKING_URI`` or, without one, in ``mlflow.db`` of the run's folder."""

import os
from collections.abc import Mapping
from time import time

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from hornbook.track.trackers.tracker import Ended, Histogram, TrackedRun

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_PARAMS_AT_ONCE = 100  # MLflow's limit


class MLflow:
    """A tracker that logs metrics, parameters, and texts and histograms as artifacts.

    MLflow's parameters cannot change: they are from the first session. ``recipe.json`` is from the last one.
    """

    def __init__(self, run: TrackedRun) -> None:
        local = None if os.environ.get("MLFLOW_TRACKING_URI") else f"sqlite:///{run.folder.resolve()}/mlflow.db"
        self._client = MlflowClient(tracking_uri=local)
        if run.run_id is None:
            artifacts = (run.folder.resolve() / "mlflow").as_uri() if local else None
            known = self._client.get_experiment_by_name(run.project)
            experiment = known.experiment_id if known else self._client.create_experiment(run.project, artifacts)
            created = self._client.create_run(experiment, run_name=run.name)
            self.run_id: str = created.info.run_id
            params = [Param(key, str(value)) for key, value in run.config.items()]
            for first in range(0, len(params), _PARAMS_AT_ONCE):
                self._client.log_batch(self.run_id, params=params[first : first + _PARAMS_AT_ONCE])
        else:
            self.run_id = run.run_id
            self._client.update_run(self.run_id, status="RUNNING")
        self._client.log_dict(self.run_id, dict(run.config), "recipe.json")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1e3 * time())
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def text(self, step: int, name: str, text: str) -> None:
        self._client.log_text(self.run_id, text, f"{name}/step-{step:08d}.txt")

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """See ``Tracker``; MLflow cannot show histograms, so those of a step are a JSON file."""
        counted = {
            name: {"edges": list(found.edges), "counts": list(found.counts)} for name, found in histograms.items()
        }
        self._client.log_dict(self.run_id, counted, f"histograms/step-{step:08d}.json")

    def close(self, ended: Ended) -> None:
        self._client.set_terminated(self.run_id, _STATUS[ended])


open_tracker = MLflow
