"""Child process that downloads one file of a model hub's repository into a folder.

`python -m magistrate.engines.models.hub REPO FILE REVISION FOLDER` prints `{"path": …}` as its last line.
If the hub refuses or cannot be reached, the exit status is 1, with one line of explanation on standard
error.
"""

from __future__ import annotations

import json
import sys


def main(repo: str, file: str, revision: str, folder: str) -> int:
    """Download the file, print its path and return the exit status."""
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(repo, file, revision=revision, local_dir=folder)
    except Exception as error:  # the parent explains whatever the client raises
        text = " ".join(str(error).split())
        print(f"{type(error).__name__}: {text[:500]}", file=sys.stderr)
        return 1
    print(json.dumps({"path": str(path)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
