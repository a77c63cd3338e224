# SPDX-License-Identifier: Apache-2.0
"""Real headless Chromium on a real console. Screenshots of failures are kept in `build/ui`."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.console.conftest import Running, server_with_console

import fluss

ROOT = Path(__file__).resolve().parents[2]
FAILURES = ROOT / "build" / "ui"
PICTURES = ROOT / "docs" / "images"
WAIT_S = 20
MARKUP = "<img src=x onerror=\"document.title='pwned'\">"
CHOOSE = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', {bubbles: true}))"

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    # Windows behind others draw as if they were in front.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--force-color-profile=srgb",
]


def _missing() -> str | None:
    """Why the suite cannot run here."""
    if not (shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")):
        return "Chromium is not installed: apt-get install chromium chromium-driver"
    if not shutil.which("chromedriver"):
        return "chromedriver is not installed: apt-get install chromium-driver"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "the driver is not installed: pip install selenium"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _missing()
    for item in items:
        if "tests/ui" in item.path.as_posix():
            item.add_marker(pytest.mark.ui)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


class Page:
    """A window of the browser."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, page: str, table: str = "") -> Page:
        from urllib.parse import quote

        table, mark, arguments = table.partition("?")
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/#/{page}" + (f"/{quote(table, safe='')}" if table else "") + mark + arguments)
        self.until(lambda: self.script("return document.body.dataset.shown || ''").startswith(f"{page}/"))
        return self

    def script(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def until(self, condition: Any) -> Any:
        """Wait until a condition holds; an element that the page has drawn anew meanwhile is looked for again."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        drawn_anew = (StaleElementReferenceException,)
        return WebDriverWait(self.driver, WAIT_S, 0.05, drawn_anew).until(lambda _: condition())

    @property
    def text(self) -> str:
        return str(self.script("return document.getElementById('main').innerText"))

    def wait_for(self, text: str) -> None:
        self.until(lambda: text in self.text)

    def element(self, css: str) -> Any:
        return self.until(lambda: self.driver.find_elements("css selector", css))[0]

    def elements(self, css: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", css))

    def field(self, label: str) -> Any:
        """The control with a label."""
        return self.until(
            lambda: self.script(
                "return [...document.querySelectorAll('label')]"
                ".find(one => one.innerText.trim().startsWith(arguments[0]))?.control ?? null",
                label,
            )
        )

    def sql(self, query: str) -> None:
        """Go to a query, without loading the page anew if it is there, and run it."""
        if "/#/" not in self.driver.current_url:
            self.open("overview")
        self.script(
            "delete document.body.dataset.shown; location.hash = '#/sql?' + new URLSearchParams({query: arguments[0]})",
            query,
        )
        self.until(lambda: self.script("return document.body.dataset.shown") == "sql/")
        self.button("Run").click()

    def button(self, text: str) -> Button:
        return Button(self, text)

    def problems(self) -> list[str]:
        """Errors that the browser logged, also violations of the content security policy."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] == "SEVERE"]

    def picture(self, name: str) -> None:
        """Keep a picture: those of the documents are replaced only on request, for no two are the same."""
        folder = PICTURES if os.environ.get("FLUSS_UI_PICTURES") else FAILURES / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(folder / f"{name}.png"))


class Button:
    """A button by its text. The page may draw it anew between looking for it and clicking it."""

    def __init__(self, page: Page, text: str) -> None:
        self._page = page
        self._text = text
        self._place: dict[str, int] | None = None

    def click(self) -> None:
        self._page.until(self._clicked)

    def _clicked(self) -> bool:
        from selenium.common.exceptions import ElementClickInterceptedException

        found = self._page.script(
            "return [...document.querySelectorAll('button')]"
            ".filter(one => one.innerText.trim() === arguments[0] && one.offsetParent).at(-1) ?? null",
            self._text,
        )
        if found is None:
            return False
        before, self._place = self._place, found.rect
        if self._place != before:
            return False  # it moves: what is above it is still being drawn, and a click would miss it
        try:
            found.click()
        except ElementClickInterceptedException:
            return False
        return True


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    lake = tmp_path_factory.mktemp("lake")
    options = ("-D", "datalake.format=paimon", "-D", f"datalake.paimon.warehouse={lake}")
    with server_with_console(tmp_path_factory.mktemp("ui"), *options) as running:
        asyncio.run(_fill(running.server))
        yield running


@pytest.fixture
def db(console: Running) -> Iterator[fluss.Database]:
    with fluss.connect(console.server, timeout=20) as found:
        yield found


async def _fill(address: str) -> None:
    async with await fluss.aio.connect(address, timeout=20) as db:
        orders = await db.create_table(
            "orders",
            "id bigint not null, item string, price double, status string",
            primary_key="id",
            buckets=4,
            comment="What customers ordered.",
        )
        items = ["green tea", "espresso", "lemonade", "oat milk", "croissant", "bagel"]
        rows = [
            {"id": n, "item": items[n % 6], "price": 2.5 + n % 9, "status": ("new", "paid", "sent")[n % 3]}
            for n in range(20_000)
        ]
        await orders.upsert(rows)
        columns = "at timestamp(3), kind string, user_id bigint"
        # With a key, so that both buckets have rows: otherwise all would go to one of them, chosen by chance.
        events = await db.create_table("events", columns, buckets=2, bucket_key="user_id")
        import datetime as dt

        await events.append([{"at": dt.datetime(2026, 7, 1), "kind": "click", "user_id": n} for n in range(1_000)])
        tiered = await db.create_table(
            "tiered", "id bigint, item string", properties={"table.datalake.enabled": "true"}
        )
        await tiered.append([{"id": n, "item": "x"} for n in range(100)])
        nasty = await db.create_table(
            "nasty", f"id bigint not null, `{MARKUP}` string", primary_key="id", comment=MARKUP
        )
        await nasty.upsert([{"id": 1, MARKUP: f"<script>document.title='pwned'</script>{MARKUP}"}])


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.add_argument("--window-size=1280,940")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.accept_insecure_certs = True
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    found = webdriver.Chrome(options=options, service=service)
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture
def page(driver: Any, console: Running, request: pytest.FixtureRequest) -> Iterator[Page]:
    driver.set_window_size(1280, 940)
    found = Page(driver, console.url)
    driver.get_log("browser")
    yield found
    failed = getattr(request.node, "failed", False)
    if failed:
        FAILURES.mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(FAILURES / f"{request.node.name}.png"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    if outcome.get_result().failed:
        item.failed = True  # type: ignore[attr-defined]


@contextmanager
def changes(address: str, per_second: int = 40) -> Iterator[None]:
    """Orders that change all the time."""
    ended = threading.Event()

    def work() -> None:
        with fluss.connect(address, timeout=20) as db:
            orders = db.table("orders")
            number = 0
            while not ended.wait(1 / per_second):
                number += 1
                if number % 13 == 0:
                    orders.delete(10_000 + number)
                else:
                    status = ("new", "paid", "sent")[number % 3]
                    orders.update(number * 7 % 9_000, price=round(time.time() % 9, 2), status=status)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(20)


@contextmanager
def other(page: Page, url: str) -> Iterator[Page]:
    """The page on another console."""
    yield Page(page.driver, url)
    page.driver.get("about:blank")


@contextmanager
def windows(page: Page, count: int, kind: str = "window") -> Iterator[list[str]]:
    """More windows or tabs of the browser, the last of them in front; closed in the end."""
    first = page.driver.current_window_handle
    handles = []
    try:
        for _ in range(count):
            page.driver.switch_to.new_window(kind)
            handles.append(page.driver.current_window_handle)
        yield handles
    finally:
        for handle in handles:
            page.driver.switch_to.window(handle)
            page.driver.close()
        page.driver.switch_to.window(first)


def violations(page: Page) -> list[tuple[str, str, str]]:
    """What axe finds on the page, in both themes and on a phone."""
    page.script(_axe_source())
    found = []
    for theme, width in (("light", 1280), ("dark", 1280), ("light", 420), ("dark", 420)):
        page.driver.set_window_size(width, 940)
        page.script("document.documentElement.dataset.theme = arguments[0]", theme)
        result = page.script("return axe.run(document, {resultTypes: ['violations']})")
        assert result["testEngine"]["name"] == "axe-core"
        found += [
            (f"{theme} {width}", one["id"], node["html"][:120]) for one in result["violations"] for node in one["nodes"]
        ]
    page.driver.set_window_size(1280, 940)
    return found


def _axe_source() -> str:
    axe = pytest.importorskip("axe_core_python", reason="pip install axe-core-python")
    return (Path(axe.__path__[0]) / "axe.min.js").read_text(encoding="utf-8")
