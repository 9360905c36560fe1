"""Test requests to reward servers: time limit, retries, token, https, and the error that ends a training.

The servers are real ones on loopback. Not covered: vLLM's own server, which needs a free GPU.
"""

import asyncio
import pickle
import re
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from processes import Python

from grpo_verl_ext.utils.errors import RewardServerError, SettingError
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import ClassifierOptions, Options
from grpo_verl_ext.verl_plugin.cpu import checks
from grpo_verl_ext.verl_plugin.rewards import server as reward_server
from grpo_verl_ext.verl_plugin.rewards.checks import check_reward_model
from grpo_verl_ext.verl_plugin.rewards.server import RewardServer

SECTION = "algorithm.grpo_ext.reward_models.judge"
MANAGER = "reward.reward_manager.name=rule_and_model"
SERVER = ("reward.reward_model.enable=true", "reward.reward_model.enable_resource_pool=true")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Score = Callable[..., float]


def answer(score: float = 0.25) -> web.Response:
    return web.json_response({"data": [{"probs": [score]}]})


async def serving(handler: Handler, ask: Callable[[str], Awaitable[Any]], **site: Any) -> Any:
    """Serve ``/classify`` while ``ask`` is called with the server's address."""
    application = web.Application()
    application.router.add_post("/classify", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, **site).start()
        scheme = "https" if site else "http"
        return await ask(f"{scheme}://localhost:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch) -> Score:
    """The score that a server with this handler gives; the test fails after 10 seconds."""
    monkeypatch.setattr(reward_server, "PAUSE", 0.01)

    def score(handler: Handler, **options: Any) -> float:
        async def ask(url: str) -> float:
            server = RewardServer(url, ClassifierOptions(**options), SECTION)
            return await asyncio.wait_for(server.score({"input": "4+5=9"}), 10)

        found: float = asyncio.run(serving(handler, ask))
        return found

    return score


class TestRetries:
    @pytest.mark.parametrize("failure", [503, 429, 408, "hangs up"])
    def test_a_server_that_fails_twice_and_then_answers(self, score: Score, failure: int | str) -> None:
        heard: list[Any] = []

        async def handler(request: web.Request) -> web.StreamResponse:
            heard.append(await request.json())
            if len(heard) > 2:
                return answer()
            if failure == "hangs up":
                assert request.transport is not None
                request.transport.close()
            return web.Response(status=failure if isinstance(failure, int) else 200)

        assert score(handler, retries=2) == 0.25
        assert heard == [{"input": "4+5=9"}] * 3

    def test_a_server_that_hangs_ends_in_an_error_with_what_to_do(self, score: Score) -> None:
        heard: list[float] = []

        async def handler(_: web.Request) -> web.StreamResponse:
            heard.append(asyncio.get_running_loop().time())
            await asyncio.sleep(60)
            return answer()

        with pytest.raises(RewardServerError) as raised:
            score(handler, timeout=0.2, retries=1)
        assert re.fullmatch(
            r"the reward server http://localhost:\d+ gave no score in 2 attempts, of which the last took "
            rf"more than 0\.2 seconds\. {SECTION}\.timeout is 0\.2 seconds, \.retries 1\. Once it answers, "
            r"type the same command again: the training goes on from the last checkpoint",
            str(raised.value),
        )
        assert len(heard) == 2
        assert 0.2 <= heard[1] - heard[0] < 2

    def test_a_server_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reward_server, "PAUSE", 0.01)
        server = RewardServer("http://127.0.0.1:9", ClassifierOptions(retries=3), SECTION)
        with pytest.raises(
            RewardServerError, match=r"in 4 attempts, of which the last failed: .*127\.0\.0\.1:9"
        ):
            asyncio.run(server.score({}))

    @pytest.mark.parametrize("status", [400, 401, 404])
    def test_what_another_attempt_cannot_mend_is_said_at_once(self, score: Score, status: int) -> None:
        heard: list[int] = []

        async def handler(_: web.Request) -> web.StreamResponse:
            heard.append(1)
            return web.Response(status=status)

        with pytest.raises(RewardServerError, match=rf"the reward server http://\S+ answered {status} \w+"):
            score(handler)
        assert len(heard) == 1

    @pytest.mark.parametrize(
        "body",
        ["", "[]", '{"data": []}', '{"data": [{"probs": []}]}', '{"data": [{"probs": ["x"]}]}', "<html>"],
    )
    def test_another_answer_than_a_score_is_quoted(self, score: Score, body: str) -> None:
        async def handler(_: web.Request) -> web.StreamResponse:
            return web.Response(text=body, content_type="application/json")

        with pytest.raises(
            RewardServerError, match=rf"answered {re.escape(repr(body))}, which holds no score"
        ):
            score(handler)

    def test_ray_can_send_the_error(self, score: Score) -> None:
        """aiohttp's own errors hold the request's headers, which cannot be pickled."""

        async def handler(_: web.Request) -> web.StreamResponse:
            return web.Response(status=401)

        with pytest.raises(RewardServerError) as raised:
            score(handler)
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


class TestToken:
    @staticmethod
    async def handler(request: web.Request) -> web.StreamResponse:
        right = request.headers.get("Authorization") == "Bearer s3cret"
        return answer() if right else web.Response(status=401)

    def test_it_is_read_from_the_environment_and_sent(
        self, score: Score, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REWARD_TOKEN", "s3cret")
        assert score(self.handler, token_env="REWARD_TOKEN") == 0.25
        with pytest.raises(RewardServerError, match="answered 401 Unauthorized"):
            score(self.handler)

    def test_a_variable_that_is_missing_is_named_before_the_first_request(self) -> None:
        options = ClassifierOptions(token_env="NO_SUCH_TOKEN")
        with pytest.raises(
            SettingError, match=r"token_env is NO_SUCH_TOKEN, but .* Type: export NO_SUCH_TOKEN="
        ):
            RewardServer("https://localhost", options, SECTION)

    def test_an_error_does_not_show_it(self, score: Score, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REWARD_TOKEN", "wrong")
        with pytest.raises(RewardServerError) as raised:
            score(self.handler, token_env="REWARD_TOKEN")
        assert "wrong" not in str(raised.value)


ASK = """
import asyncio, sys
from grpo_verl_ext.utils.errors import RewardServerError
from grpo_verl_ext.verl_plugin.config import ClassifierOptions
from grpo_verl_ext.verl_plugin.rewards.server import RewardServer

server = RewardServer("URL", ClassifierOptions(retries=0), "section")
try:
    print(asyncio.run(server.score({})))
except RewardServerError as error:
    print(error)
"""


class TestHttps:
    @pytest.fixture
    def certificate(self, tmp_path: Path) -> tuple[Path, Path]:
        """A self-signed certificate of localhost, and its key."""
        made = tmp_path / "certificate.pem", tmp_path / "key.pem"
        name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *name]
        subprocess.run(
            [*line, "-out", str(made[0]), "-keyout", str(made[1])], check=True, capture_output=True
        )
        return made

    @pytest.mark.parametrize(("trusted", "said"), [(True, r"0\.25"), (False, ".*certificate verify failed")])
    def test_the_certificate_is_checked_against_the_machines_or_ssl_cert_file(
        self, certificate: tuple[Path, Path], python: Python, *, trusted: bool, said: str
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)

        async def handler(_: web.Request) -> web.StreamResponse:
            return answer()

        async def ask(url: str) -> str:
            trust = {"SSL_CERT_FILE": str(certificate[0])} if trusted else {}
            made = await asyncio.to_thread(python, ASK.replace("URL", url), **trust)
            return str(made.stdout + made.stderr)

        assert re.match(said, asyncio.run(serving(handler, ask, ssl_context=context)))


class TestManager:
    def test_a_server_of_ones_own_is_asked_for_the_model_at_path(self, policy: Path) -> None:
        from test_reward_model import asked

        heard: list[dict[str, Any]] = []

        async def handler(request: web.Request) -> web.StreamResponse:
            heard.append(await request.json())
            return answer()

        async def ask(url: str) -> dict[str, Any]:
            settings = (f"+{SECTION}.path={policy}", f"+{SECTION}.url={url}/", f"+{SECTION}.weight=2")
            return await asyncio.to_thread(asked, composed([MANAGER, *settings]))

        result = asyncio.run(serving(handler, ask))
        assert result["reward_score"] == 2.5  # the function's 2, and 2 · 0.25
        assert result["reward_extra_info"]["reward_model_score.judge"] == 0.25
        text = "user\n4+5=?\n<answer>9</answer><|im_end|>"
        assert heard == [{"model": str(policy), "input": text, "use_activation": False}]


class TestChecks:
    FIRST = "algorithm.grpo_ext.reward_model"

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (
                [f"+{SECTION}.path=o/m", f"+{SECTION}.url=host:8000"],
                r"url is host:8000; valid is an address .*https",
            ),
            (
                [f"+{SECTION}.path=o/m", f"+{SECTION}.url='https://'"],
                r"url is .* Type: .*url=https://HOST:8000",
            ),
            (
                [f"+{SECTION}.path=o/m", f"+{SECTION}.timeout=0"],
                r"timeout is 0; valid is a finite number > 0",
            ),
            (
                [f"+{SECTION}.path=o/m", f"+{SECTION}.retries=-1"],
                r"retries is -1; valid is an integer from 0",
            ),
            (
                [f"+{SECTION}.path=o/m", f"+{SECTION}.retries=1.5"],
                r"retries is 1\.5; valid is an integer from 0",
            ),
            (
                [f"+{SECTION}.path=o/m", f"+{SECTION}.token_env='Bearer s3'"],
                r"token_env is Bearer s3; valid is the name of an environment variable",
            ),
            ([f"+{SECTION}.url=https://host"], r"judge\.path is null; valid is a folder"),
            (
                [f"+{SECTION}.path=o/m", f"+{SECTION}.timeout=5"],
                rf"timeout is 5, but {SECTION}\.url is null.* Type: \+{SECTION}\.url=.*, or ~{SECTION}\.time",
            ),
            (
                [f"+{SECTION}.path=o/m", f"+{SECTION}.url=https://host", f"+{SECTION}.dtype=auto"],
                rf"dtype is auto, but the server at url .* Type: ~{SECTION}\.url, or ~{SECTION}\.dtype",
            ),
            (
                [
                    *SERVER,
                    "reward.custom_reward_function.path=pkg://verl.utils.reward_score",
                    f"+{FIRST}.token_env=T",
                ],
                rf"token_env is T, but {FIRST}\.path is null, so that verl's own server .* is asked",
            ),
        ],
    )
    def test_what_cannot_work_is_refused(self, overrides: list[str], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            check_reward_model(composed([MANAGER, *overrides]))

    def test_what_works_passes(self) -> None:
        served = (f"+{SECTION}.url=https://host:8000/v2", f"+{SECTION}.token_env=T", f"+{SECTION}.retries=0")
        check_reward_model(composed([MANAGER, f"+{SECTION}.path=o/m", *served]))
        verls = (*SERVER, f"+{self.FIRST}.timeout=5", f"+{self.FIRST}.retries=1")
        rules = "reward.custom_reward_function.path=pkg://verl.utils.reward_score"
        check_reward_model(composed([MANAGER, *verls, rules]))

    def test_a_served_model_takes_no_memory_here(self, policy: Path) -> None:
        here = composed([MANAGER, f"+{SECTION}.path={policy}"])
        there = composed([MANAGER, f"+{SECTION}.path={policy}", f"+{SECTION}.url=https://host"])
        assert checks._reward_model_bytes(here) > 0
        assert checks._reward_model_bytes(there) == 0

    def test_defaults(self) -> None:
        (model,) = (
            Options.from_config({"grpo_ext": {"reward_models": {"m": {"path": "p"}}}}).reward_models or {}
        ).values()
        assert (model.url, model.token_env, model.timeout, model.retries) == (None, None, 300.0, 5)


DRIVER = """
import asyncio
import ray
from grpo_verl_ext.utils.errors import RewardServerError
from grpo_verl_ext.verl_plugin.patches import watchdog
from grpo_verl_ext.verl_plugin.config import ClassifierOptions
from grpo_verl_ext.verl_plugin.rewards.server import RewardServer

@ray.remote(num_cpus=0)
class RewardWorker:
    async def score(self):
        return await RewardServer("http://127.0.0.1:9", ClassifierOptions(retries=0), "section").score({})
    async def forever(self):
        await asyncio.sleep(600)

def train(then, seconds):
    # As in verl: an error of a reward is logged, and its response is left out.
    watchdog.LOOK_SECONDS = seconds
    with watchdog.watched():
        worker = RewardWorker.remote()
        try:
            ray.get(worker.score.remote())
        except ray.exceptions.RayTaskError as error:
            print("logged:", type(error.cause).__name__, flush=True)
        then(worker)

def wait(worker):
    ray.get(worker.forever.remote())

def end(worker):
    pass

def end_otherwise(worker):
    raise RuntimeError("no trajectories")

ray.init(address="local", num_cpus=1, include_dashboard=False)
for then, seconds in ((wait, 20), (end, 600), (end_otherwise, 600)):
    try:
        train(then, seconds)
    except RewardServerError as error:
        print(then.__name__, "ended:", error, flush=True)
with watchdog.watched():
    print("another training ended well", flush=True)
"""


@pytest.mark.long
def test_a_training_ends_with_the_servers_error_where_verl_would_go_on(python: Python) -> None:
    """While it waits, at its end, and where verl itself ends for want of responses; the next one is new."""
    made = python(DRIVER, RAY_raylet_start_wait_time_s="120")
    assert made.returncode == 0, made.stderr
    lines = made.stdout.splitlines()
    assert lines.count("logged: RewardServerError") == 3
    ends = [line for line in lines if "ended: the reward server http://127.0.0.1:9 gave no score" in line]
    assert [line.split()[0] for line in ends] == ["wait", "end", "end_otherwise"]
    assert lines[-1] == "another training ended well"
