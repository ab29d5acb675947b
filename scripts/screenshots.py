"""`python -m scripts.screenshots [--url URL] [--out docs/img]`: pictures of a running demo, for the README.

Needs `make up` running with its demo job, and Chromium on PATH. Signs in as the demo's approver.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ADDRESS, PASSWORD = "approver@demo.example", "counterflow-demo"
SHOTS = {  # file -> (page, scheme)
    "job-light.png": ("job", "light"),
    "job-dark.png": ("job", "dark"),
    "decisions-light.png": ("decisions", "light"),
}
SIZE = {"width": 1440, "height": 900}


def sign_in(page: Page, url: str) -> None:
    page.goto(f"{url}/accounts/login/")
    page.fill("input[name=login]", ADDRESS)
    page.fill("input[name=password]", PASSWORD)
    page.press("input[name=password]", "Enter")
    page.wait_for_url(lambda address: "/accounts/login" not in address)


def open_page(page: Page, url: str, name: str) -> None:
    """Go to the newest job, or to the inbox, and wait until its charts are drawn."""
    if name == "job":
        page.goto(f"{url}/jobs/")
        page.goto(url + str(page.locator("main a[href^='/jobs/']:not([href*='new'])").first.get_attribute("href")))
        page.wait_for_selector(".js-plotly-plot .main-svg")
    else:
        page.goto(f"{url}/{name}/")
    page.wait_for_timeout(1500)  # transitions and the first live update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium was not found on PATH (on Debian: apt install chromium)")
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for file, (name, scheme) in SHOTS.items():
            page = browser.new_context(viewport=SIZE, color_scheme=scheme).new_page()  # type: ignore[arg-type]
            page.set_default_timeout(240_000)  # the demo trains on the same processors
            sign_in(page, options.url)
            open_page(page, options.url, name)
            page.screenshot(path=options.out / file)
            print(options.out / file)
        browser.close()


if __name__ == "__main__":
    main()
