"""`hace demo`: from nothing to a model and its page."""

from __future__ import annotations

from pathlib import Path


def demo(*, out: Path = Path("hace-demo")) -> None:
    """Draw photos of 65 species of creatures, half of them labelled only to family, and fit a model. The page it writes shows
    which loss it chose, how sure it can be, what coarse labels add, and what it says about species it has never seen.

    Examples
      hace demo                                       into ./hace-demo; run it again to resume
      hace predict hace-demo/creatures.hace PHOTO     ask the model
      hace serve hace-demo/creatures.hace             try it in the browser

    It is `hace fit` on drawings, with a backbone that needs no download. It shows how hace works, not what a method gains.

    Args:
        out: Folder of photos, model and page.
    """
    from hace.fitting.demo import make_demo
    from hace.fitting.progress import Display
    from hace.lab.runs.process import keep_freed_memory

    keep_freed_memory()
    with Display() as display:
        made = make_demo(out, progress=display.show)
    print(made.model)
    print(f"{'Not listed:':12}{made.strangers}")
    print(f"\nThe page: {made.page.resolve()}")
