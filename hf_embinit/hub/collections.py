"""Collections: pages of the Hub that list repositories."""

from __future__ import annotations

from collections.abc import Mapping

from .repository import HubRepository, RepoType

_LONGEST_NOTE = 500  # characters, as the Hub has it


def add_to_collection(
    title: str, items: Mapping[str, tuple[RepoType, str]], of: HubRepository, *, private: bool = False
) -> str:
    """Puts repositories into the collection of that title, made if needed, and returns its address.

    `items` is repository -> its type and a note. `of` is a repository whose owner and token are used. What is
    in the collection stays there, so it may be done again. Raises `PublishError`.
    """
    with of.told(f"The collection {title!r} may lack some of its {len(items)} items; publish again."):
        collection = of.api.create_collection(
            title, namespace=of.repo_id.partition("/")[0], private=private, exists_ok=True
        )
        held = {item.item_id for item in collection.items}
        for repo_id, (repo_type, note) in items.items():
            if repo_id not in held:
                of.api.add_collection_item(
                    collection.slug, repo_id, repo_type, note=note[:_LONGEST_NOTE], exists_ok=True
                )
    return str(collection.url)
