"""A run's checkpoint or an exported folder -> a repository on the Hub.

    trivium push runs/base me/base

The folder is written first and then uploaded as one commit by huggingface_hub, which skips files that the Hub has. The
token is its own (`hf auth login`, or HF_TOKEN); it is never read, shown or kept here.
"""

import os
import re
import tempfile
from pathlib import Path

from trivium.ask.export import export_checkpoint
from trivium.errors import UsageError
from trivium.model.huggingface import CONFIG_FILE
from trivium.publish.card import model_card
from trivium.run.folder import find_checkpoint

REPOSITORY = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
CLIENTS = ("httpx", "httpx2", "requests")  # what huggingface_hub speaks through, by its version
NO_TOKEN = "no valid token of the Hub was found. Log in first: hf auth login"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def push_model(
    model: Path, repository: str, step: int | None = None, *, averaged: bool = False, private: bool = False
) -> str:
    """Upload a model, and give a sentence about it; what cannot be uploaded is one error."""
    if REPOSITORY.fullmatch(repository) is None:
        raise UsageError(f'"{repository}" is not the name of a repository. Write owner/name, such as me/small.')
    offline = next((name for name in OFFLINE if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")), None)
    if offline is not None:
        raise UsageError(f"{repository}: {offline} is set, so that nothing is uploaded. Unset it to push.")
    if is_exported(model):
        if step is not None or averaged:
            raise UsageError(f"{model}: is an exported folder. --step and --weights are for runs: leave them out.")
        return _uploaded(model, repository, "Upload", private=private)
    checkpoint = find_checkpoint(model, step)
    with tempfile.TemporaryDirectory(prefix="trivium-push-") as temporary:
        folder = Path(temporary, "model")
        card = model_card(model, step, averaged=averaged)
        export_checkpoint(model, folder, step, averaged=averaged, card=card)
        return _uploaded(folder, repository, f"Step {checkpoint.step:,}", private=private)


def is_exported(folder: Path) -> bool:
    """Whether this is a Hugging Face folder, and not a run or a checkpoint."""
    return (folder / CONFIG_FILE).is_file()


def _uploaded(folder: Path, repository: str, message: str, *, private: bool) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi(library_name="trivium")
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(folder_path=folder, repo_id=repository, commit_message=message)
    except LocalTokenNotFoundError:
        raise UsageError(f"{repository}: {NO_TOKEN}.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        known = {401: NO_TOKEN, 403: "the token may not write there"}
        reason = known.get(status, str(error.server_message or error).splitlines()[0])
        raise UsageError(f"{repository}: the Hub refused it ({status}): {reason}.") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in CLIENTS and not isinstance(error, OSError):
            raise
        what = f"the Hub at {api.endpoint} cannot be reached: {str(error) or type(error).__name__}"
        raise UsageError(
            f"{repository}: {what}. Export a folder, and push it later: trivium push FOLDER {repository}."
        ) from None
    sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
    return f"{commit.repo_url}: {message}, {len(sizes)} files, {sum(sizes) / 1e6:,.1f} MB."
