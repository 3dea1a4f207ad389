"""Unpacks a wheel from PyPI's simple index (PEP 503), for a python3 without pip: wheel.py PACKAGE VERSION FOLDER."""

import hashlib
import html.parser
import io
import os
import platform
import sys
import urllib.parse
import urllib.request
import zipfile


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found.append(dict(attributes)["href"])


package, version, folder = sys.argv[1:]
index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + f"/{package}/"
links = Links()
with urllib.request.urlopen(index) as answer:
    links.feed(answer.read().decode())

system = {"Linux": "manylinux", "Darwin": "macosx"}.get(platform.system(), platform.system().lower())
machine = platform.machine().lower().replace("arm64", "aarch64" if system == "manylinux" else "arm64")
names = [link for link in links.found if f"{package}-{version}-" in link and ".whl#sha256=" in link]
wheels = [link for link in names if "-none-any.whl" in link or system in link and machine in link]
if not wheels:
    sys.exit(f"{package} {version} has no wheel for {platform.system()} on {platform.machine()} at {index}")

link, digest = wheels[0].split("#sha256=")
with urllib.request.urlopen(urllib.parse.urljoin(index, link)) as answer:
    wheel = answer.read()
if hashlib.sha256(wheel).hexdigest() != digest:
    sys.exit(f"{link} is not what the index says it is")

with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
    for member in archive.infolist():
        path = archive.extract(member, folder)
        mode = member.external_attr >> 16 & 0o777
        if mode and not member.is_dir():
            os.chmod(path, mode)
