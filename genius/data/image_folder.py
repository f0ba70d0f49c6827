"""A folder of images named by their content, so that each is stored once."""

import hashlib
import io
import os
from contextlib import suppress
from pathlib import Path

from PIL import Image

from genius.data.image_headers import FORMATS


class ImageFolder:
    """Writes images to a folder.

    Attributes:
        count: Number of images written.
    """

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self._folder = folder

    def path(self, image: bytes) -> str:
        """Return the path that an image has or gets, relative to the parent of the folder."""
        name = hashlib.blake2b(image, digest_size=16).hexdigest()
        return f"{self._folder.name}/{name[:2]}/{name[2:]}{_suffix(image)}"

    def save(self, image: bytes, source: str | os.PathLike[str] | None = None) -> str:
        """Write an image; return its path relative to the parent of the folder.

        Args:
            image: Content of an image file.
            source: A file with this content. It is hard-linked instead of copied if the file system allows.
        """
        path = self.path(image)
        file = self._folder.parent / path
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            if source is not None:
                with suppress(OSError):
                    os.link(os.path.realpath(source), file)
            if not file.exists():
                file.write_bytes(image)
            self.count += 1
        return path


def _suffix(content: bytes) -> str:
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return f".{(image.format or 'img').lower()}"
    except Exception:  # parsers raise many types
        return ".img"
