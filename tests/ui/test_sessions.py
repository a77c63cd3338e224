# SPDX-License-Identifier: Apache-2.0
"""Users: logging in and out, rights that are granted and end, and what a session protects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.console.conftest import Running, server_with_console

import fluss
from fluss.server.users import USERS_FILE, UserFile
from fluss.tools.access import revoke_rights

from .conftest import CHOOSE, Page, other, violations, windows

USERS = {
    "bind.listeners": "CLIENT://127.0.0.1:0,FLUSS://127.0.0.1:0",
    "security.protocol.map": "CLIENT:SASL",
    "security.sasl.enabled.mechanisms": "PLAIN",
    "security.sasl.plain.credentials": "alice:wonder,root:secret",
    "super.users": "User:root",
    "authorizer.enabled": "true",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with users: root may do everything, alice nothing."""
    options = [word for name, value in USERS.items() for word in ("-D", f"{name}={value}")]
    with server_with_console(tmp_path_factory.mktemp("guarded"), *options) as running:
        with fluss.connect(running.server, user="root", password="secret") as root:
            root.create_table("hers", "a int").append([(1,)])
            root.create_table("others", "a int")
        yield running


@pytest.fixture
def there(page: Page, guarded: Running) -> Iterator[Page]:
    with other(page, guarded.url) as found:
        yield found
        found.driver.get(found.url)
        found.driver.delete_all_cookies()


def log_in(page: Page, user: str, password: str) -> None:
    page.driver.delete_all_cookies()
    page.driver.get("about:blank")
    page.driver.get(f"{page.url}/#/overview")
    page.field("User").send_keys(user)
    page.field("Password").send_keys(f"{password}\n")
    page.until(lambda: page.elements("nav a"))


def test_rights(there: Page, guarded: Running) -> None:
    """A user with rights on one table sees it; a stream ends with the right; a super user is allowed everything."""
    log_in(there, "root", "secret")
    there.open("access")
    for operation in ("read", "write"):
        user = there.field("User to allow")
        user.clear()
        user.send_keys("alice")
        there.script(CHOOSE, there.field("Operation"), operation)
        on = there.field("On")
        on.clear()
        on.send_keys("fluss.hers\n")
        there.until(lambda operation=operation: operation.upper() in there.element("[aria-label='Access rules']").text)
    there.element("[aria-label='Revoke WRITE on fluss.hers of User:alice']").click()
    there.script("[...document.querySelectorAll('dialog button')].at(-1).click()")
    there.until(lambda: "WRITE" not in there.element("[aria-label='Access rules']").text)
    for user, allowed in (("root", "allowed"), ("alice", "denied")):
        there.open("access")
        checked = there.elements("form.bar input")
        checked[-2].send_keys(user)
        checked[-1].send_keys("fluss.hers\n")
        there.until(lambda: there.elements("[aria-label='Effective permissions'] tbody tr"))
        rows = {one.text.split()[0]: one.text for one in there.elements("[aria-label='Effective permissions'] tr")}
        assert allowed in rows["WRITE"], user
        assert "allowed" in rows["READ"]
    log_in(there, "alice", "wonder")
    there.until(lambda: [one.text for one in there.elements("nav details .name")] == ["hers"])
    there.open("live", "fluss.hers").wait_for("live")
    with fluss.connect(guarded.server, user="root", password="secret") as root:
        revoke_rights(root, "alice", "read", "fluss.hers")
    there.wait_for("stopped")
    assert "hers" in there.element(".problem").text


def test_logging_out_ends_live_pages(there: Page) -> None:
    """Also those of other windows: the session belongs to the browser."""
    log_in(there, "root", "secret")
    there.open("live", "fluss.hers").wait_for("live")
    live = there.driver.current_window_handle
    with windows(there, 1):
        there.open("overview")
        there.button("Log out").click()
        there.field("Password")
        there.driver.switch_to.window(live)
        there.field("Password")
        assert there.elements("tbody") == []


def test_the_login_is_accessible(there: Page) -> None:
    there.driver.get(there.url)
    there.field("Password")
    assert violations(there) == []


def test_login_over_https(page: Page, tmp_path: Path) -> None:
    """The cookie never travels in clear text, and pages work with the certificate of the server."""
    UserFile(tmp_path / USERS_FILE).set_password("alice", "wonder")
    with server_with_console(tmp_path, "--login", "--tls-self-signed") as running, other(page, running.url) as there:
        assert running.url.startswith("https://")
        log_in(there, "alice", "wonder")
        (cookie,) = there.driver.get_cookies()
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
        there.sql("create table safe (a int)")
        there.wait_for("rows in")
        there.open("live", "fluss.safe").wait_for("live")
        there.driver.delete_all_cookies()
