"""Test runs as jobs of a real Ray, with a stand-in for the trainer."""

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient
from ray_cluster import free_ports, ray_head

from grpo_verl_ext.ablation import run as runner
from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.ablation.ray_jobs import RayCluster, connected
from grpo_verl_ext.ablation.run import go
from grpo_verl_ext.runs.verl_run import VerlRun

CLIP = Path(__file__).parents[2] / "examples" / "ablations" / "clip_chain_sum.yaml"
"""A grid that is refused before anything of it is composed."""


@pytest.fixture(autouse=True)
def _asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_POLL_SECONDS", 0.2)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray in whose path `python` is `fake_cluster_python`."""
    folder = tmp_path_factory.mktemp("bin")
    python = folder / "python"
    fake = Path(__file__).parents[1] / "helpers" / "fake_cluster_python.py"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$@"\n')
    python.chmod(0o755)
    with ray_head(cpus=2, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}") as at:
        yield at


@pytest.fixture
def client(address: str) -> JobSubmissionClient:
    return JobSubmissionClient(address)


@pytest.fixture
def signs(tmp_path: Path) -> Path:
    folder = tmp_path / "signs"
    folder.mkdir()
    return folder


@pytest.fixture
def run_named(tmp_path: Path, signs: Path) -> Callable[..., GridRun]:
    def run(name: str, *more: str, wait_for: str = "", status: int = 0) -> GridRun:
        overrides = [f"+name={name}", f"+signs={signs}", f"+wait_for={wait_for}", f"+status={status}", *more]
        return GridRun(name, 1, f"{name}/seed-1", VerlRun(tmp_path / f"grid/{name}/seed-1", overrides, 2))

    return run


class Told:
    """A stand-in for rich's Live that remembers, and acts on the first metrics when asked to."""

    def __init__(self, on_metrics: Callable[[], object] = lambda: None) -> None:
        self.begun: list[str] = []
        self.on_metrics = on_metrics
        self.console = self

    def print(self, line: str, style: str = "") -> None:
        self.begun += re.findall(r" (\w+)/seed-1 begins", line)

    def update(self, text: object) -> None:
        if ", step 0 of" not in str(text):
            self.on_metrics()


def cluster(address: str, at_once: int = 1, **settings: Any) -> RayCluster:
    return replace(connected(address, at_once, settings.pop("say", print)), **settings)


def submit(
    tmp_path: Path, runs: list[GridRun], at: RayCluster | None, **settings: Any
) -> tuple[Told, list[GridRun]]:
    """What was told, and the runs that have failed."""
    told = settings.pop("told", Told())
    usual = {"base": [], "axes": {"x": {"x": []}}, "seeds": [1], "baseline": ["x"], "metrics": ["score"]}
    grid = GridSettings(folder=str(tmp_path / "grid"), steps=2, **usual)
    go(grid, runs, told, cluster=at, **settings)
    return told, [run for run in runs if run.status().state == "failed"]


def jobs_of(client: JobSubmissionClient, tmp_path: Path) -> list[Any]:
    """All jobs ever submitted by one test."""
    return [job for job in client.list_jobs() if str(tmp_path / "grid") in job.entrypoint]


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert process is None or process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.ci
def test_a_run_is_a_job_with_the_same_command_line_and_metrics(tmp_path, address, client, run_named) -> None:
    run = run_named("a", "+word='it is $HOME; \"so\"'")
    told, failed = submit(tmp_path, [run], cluster(address))
    assert (told.begun, failed, run.status().state) == (["a"], [], "finished")
    assert run.training.metrics() == {1: {"score": 1}, 2: {"score": 2, "training/global_step": 2}}
    log = (run.training.folder / "attempt-1.log").read_text()
    arguments = json.loads(next(line for line in log.splitlines() if line.startswith("arguments"))[10:])
    assert arguments == [
        *run.training.arguments(),
        # A running Ray has its size: ray.init refuses another.
        "ray_kwargs.ray_init.num_cpus=null",
        "++ray_kwargs.ray_init.num_gpus=null",
        "++ray_kwargs.ray_init._system_config=null",
        # Several trainings may be there at once.
        "++algorithm.grpo_ext.own_queue=true",
    ]
    (job,) = jobs_of(client, tmp_path)
    assert job.submission_id.startswith("grid-a-seed-1-attempt-1-")
    assert run.job() is None
    assert submit(tmp_path, [run], cluster(address))[0].begun == []


@pytest.mark.ci
def test_a_failed_job_is_noted_and_the_others_go_on(tmp_path, address, client, run_named) -> None:
    runs = [run_named("a", status=3), run_named("b")]
    told, failed = submit(tmp_path, runs, cluster(address))
    assert (told.begun, failed) == (["a", "b"], [runs[0]])
    assert [run.status().state for run in runs] == ["failed", "finished"]
    reason = runs[0].status().reason
    assert "the reason of a\njob grid-a-seed-1-attempt-1-" in reason
    assert "is FAILED: Job entrypoint command failed with exit code 3" in reason

    assert submit(tmp_path, runs, cluster(address))[0].begun == ["a"]
    assert (runs[0].training.folder / "attempt-2.log").exists()
    assert len({job.submission_id for job in jobs_of(client, tmp_path)}) == 3


@pytest.mark.ci
def test_after_a_kill_the_same_jobs_are_watched(tmp_path, address, client, signs, run_named) -> None:
    """One job fails while nobody watches, one is still running."""
    runs = [run_named("a", wait_for="go"), run_named("b", wait_for="fail", status=3), run_named("c")]
    described = json.dumps([(str(run.training.folder), run.training.overrides) for run in runs])
    submits = Path(__file__).parents[1] / "helpers" / "submit_runs.py"
    killed = subprocess.Popen([sys.executable, submits, address, tmp_path / "grid", described])
    try:
        wait_until(lambda: (signs / "a.begun").exists() and (signs / "b.begun").exists())
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert [run.status().state for run in runs] == ["begun", "begun", "waiting"]
    (signs / "fail").touch()
    failing = runs[1].job().submission_id
    wait_until(lambda: client.get_job_status(failing) is JobStatus.FAILED)

    told, failed = submit(tmp_path, runs, cluster(address, 2), told=Told(on_metrics=(signs / "go").touch))
    assert (told.begun, failed) == (["a", "b", "c"], [runs[1]])
    assert [run.status().state for run in runs] == ["finished", "failed", "finished"]
    assert "the reason of b" in runs[1].status().reason
    assert len(jobs_of(client, tmp_path)) == 3
    assert [(signs / f"{name}.begun").read_text() for name in "abc"] == ["once\n"] * 3


@pytest.mark.ci
def test_a_forgotten_job_is_submitted_again_unless_it_ended(tmp_path, address, signs, run_named) -> None:
    runs = [run_named("a"), run_named("b", wait_for="go")]
    submit(tmp_path, runs[:1], cluster(address))
    for run in runs:
        note = {"submission_id": "of another day", "address": address, "attempt": "attempt-1"}
        run.training.folder.mkdir(parents=True, exist_ok=True)
        (run.training.folder / "job.json").write_text(json.dumps(note))
    (signs / "go").touch()
    said: list[str] = []
    submit(tmp_path, runs, cluster(address, say=said.append))
    assert [run.status().state for run in runs] == ["finished", "finished"]
    assert len([words for words in said if "does not know job of another day" in words]) == 2
    assert [(signs / f"{name}.begun").read_text() for name in "ab"] == ["once\n"] * 2


@pytest.mark.ci
def test_a_job_goes_on_when_the_connection_stays_lost(tmp_path, address, client, run_named) -> None:
    run, nobody = run_named("a", wait_for="never"), f"http://127.0.0.1:{free_ports(1)[0]}"
    lost = replace(cluster(address, patience=0.3, pause=0.1), address="http://a.door.of.it:8265")
    told = Told(on_metrics=lambda: setattr(lost.client, "_address", nobody))
    with pytest.raises(AblationError, match=r"no answer from .* for 0 s .*Submitted jobs continue"):
        submit(tmp_path, [run], lost, told=told)
    (job,) = jobs_of(client, tmp_path)
    assert job.status is JobStatus.RUNNING
    assert (run.status().state, run.status().reason) == ("begun", None)

    for other in (cluster(address), None):
        with pytest.raises(AblationError, match=f"as job {job.submission_id}, which may be running"):
            submit(tmp_path, [run], other)
    client.stop_job(job.submission_id)


def test_an_address_where_nobody_answers_is_one_message_before_anything_begins(ablate, tmp_path) -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    said = ablate("run", CLIP, f"folder={tmp_path}/grid", "--ray-address", nobody, status=1).stderr
    assert said.startswith(f"ablate: --ray-address is {nobody}, where Ray's job API")
    assert f"type: ray job list --address {nobody}" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "grid").exists()


@contextmanager
def another_server(status: int) -> Iterator[str]:
    """Answers, but is no dashboard of Ray."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "message"),
    [*((status, "Ray's job API does not answer") for status in (200, 404)), (401, "RAY_AUTH_TOKEN")],
)
def test_another_server_at_the_address_is_refused(status: int, message: str) -> None:
    with (
        another_server(status) as at,
        pytest.raises(AblationError, match=rf"(?s)--ray-address is {at}.*{message}"),
    ):
        connected(at, 1, print)


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(AblationError, match=r"--ray-address is ray://head:10001, .*; valid is .*http://HOST"):
        connected("ray://head:10001", 1, print)


@pytest.mark.parametrize("name", ["RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"])
def test_an_address_that_ray_would_prefer_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://elsewhere:8265")
    with pytest.raises(AblationError, match=f"{name} is http://elsewhere:8265.*Type: unset {name}"):
        connected("http://head:8265", 1, print)


def test_several_jobs_need_a_cluster(ablate) -> None:
    refused = ablate("run", CLIP, "--jobs", 2, status=1)
    assert "--jobs is 2; without a cluster valid is 1" in refused.stderr
