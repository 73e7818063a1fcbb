"""Links that leave docs/ lead to the repository; all links of all pages must lead somewhere."""

import logging
import pathlib
import re
import subprocess

from markdown.extensions.toc import slugify

log = logging.getLogger("mkdocs.hooks.links")
ROOT = pathlib.Path(__file__).parents[1]
LINK = re.compile(r"\]\(((?!https?:|mailto:|#)[^)\s]+)\)")


def headings(page):
    return {slugify(heading, "-") for heading in re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)}


def on_pre_build(config):
    """Pages that are no part of the site, README.md and its like: their files, and the headings they point at."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if name.startswith("docs/"):
            continue
        for link in LINK.findall((ROOT / name).read_text()):
            path, _, heading = link.partition("#")
            target = (ROOT / name).parent / path
            if not target.exists() or (heading and heading not in headings(target)):
                log.warning("%s links to %s, which does not exist", name, link)


def on_page_markdown(markdown, page, config, **_):
    def leave(match):
        text, link = match.groups()
        if not link.startswith("../"):
            return match.group(0)
        target = (ROOT / "docs" / link.split("#")[0]).resolve()
        if not target.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_path, link)
        # Without an address of the repository the words have to do.
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{target.relative_to(ROOT)})" if config.repo_url else text

    return re.sub(r"\[([^\]]*)" + LINK.pattern, leave, markdown)
